"""`jaxquard reproduce`: the evaluation of a paper, one paper a file.

In: the name of a paper, a folder, and for CFP the models to measure. Out: a page with every figure and table beside the
paper's, its numbers as JSON, and on stdout the headlines with a verdict on each.
"""
