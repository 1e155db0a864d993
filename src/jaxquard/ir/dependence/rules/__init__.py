"""The rules, one file for each family of primitives; each has a table `RULES` by primitive name."""
