"""The rules of dependence, one file for each family of primitives (CFP, section 3.2, Table 1).

In: an equation of one of the file's primitives. Out: its `Dependences`. Each file has a table `RULES` by primitive
name; `rule_table` joins them.
"""
