"""The page of CFP (section 5).

In: results of cells. Out: one HTML page with the paper's figures, headlines and claims beside ours.
"""
