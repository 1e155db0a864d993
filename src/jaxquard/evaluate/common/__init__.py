"""Parts that the evaluations of all papers share.

In: the numbers of a paper (`paper.toml`) and ours.
Out: claims with their exceptions, verdicts with their grades, number texts, result files, and tables of a page.
"""
