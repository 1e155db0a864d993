"""Shardings of every value under a choice for every block (CFP, section 3.3 and figure 5; baselines of section 5).

In: an `Analysis` and an assignment of choices to blocks.
Out: the layouts of values (`StepLayouts`), the segment boundaries where they are resharded, the programs to price
(`StepPrograms`), the communication volume by symbolic rules, and known recipes as baselines (`CandidatePlan`).
"""
