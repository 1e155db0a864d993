"""Parts that the evaluations of all papers share.

In: the numbers of a paper (`paper.toml`) and ours.
Out: headlines beside ours with their verdicts, claims with their exceptions, number texts, result files, and tables of
a page.
"""
