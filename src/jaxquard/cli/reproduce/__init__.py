"""`jaxquard reproduce`, one paper a file.

In: the name of a paper and the folder to write to. Out: its page and its results as JSON.
"""
