"""Sizes of the models, one model a file: the published ones, their parameters and their operations.

In: nothing but the fields of a config, which are checked. Out: a frozen config, `SIZES` by name, `num_parameters` and
`flops_per_token`. No parameter is made here.
"""
