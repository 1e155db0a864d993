"""Plans as data: what a plan says, its file, its text, and comparisons of two of them.

In: the answer of a search. Out: `Plan`, its JSON, `str(plan)`, `diff` and `explain`.
"""
