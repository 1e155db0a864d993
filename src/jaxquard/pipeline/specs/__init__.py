"""Partition specs of the values of a step, inferred from those of its arguments (JaxPP, section 2.1).

In: the specs that the user gave for arguments and results, and the sharding constraints in the step. Out: a `Spec` for
each value, so that two actors agree on the sharding of what crosses between them before either compiles.
`infer_specs` follows the dependence rules of `ir.dependence`; `argument_specs` fills in what the user left out;
`loop_specs` follows a loop's body.
"""
