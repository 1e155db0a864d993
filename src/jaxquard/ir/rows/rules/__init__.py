"""The rules of laws, one file for each family of primitives.

In: an equation on the whole batch, the same on a part, and what is known of its inputs. Out: what is known of its
outputs, for all values. Apart from those of loops, rules see no input without a law: what follows from one has none.
"""
