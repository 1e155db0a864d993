"""Rules: from an equation on the whole batch, the same on a part, and what is known of its inputs, to its outputs.

A rule states what holds for all values. It never sees an input without a law: whatever follows from one has none.
"""
