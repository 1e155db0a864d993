"""Shardings of every value under a choice for every block (CFP, section 3.3 and figure 5; baselines of section 5).

In: an `Analysis` and an assignment of choices to blocks.
Out: the layout of each value, what is resharded at segment boundaries, the programs to price (one segment or the whole
step), the communication volume by symbolic rules, and the known recipes as baselines.
"""
