"""The passes that rewrite a traced step, one a file (JaxPP, sections 3.2 to 3.4 and 5.2.1).

In: an `ir.step.Step` whose loops are single equations with a body. Out: the same step, ready to become tasks: calls
and backward checkpoints opened, invariants hoisted, stacked leaves in parts, every equation of a body with its stage
and phase, gradients summed per actor and per device. Each pass is a pure function from `Step` to `Step`;
`plan_step.PASSES` has their order.
"""
