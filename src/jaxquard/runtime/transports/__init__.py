"""Carries messages between actors that are processes (JaxPP, section 4.2: sends and receives).

In: the channels of a program, and arrays to send. Out: the same arrays on the receiving actor's devices. `protocol` is
what every transport promises, `base` what all of them share; `stream/` uses connections of our own, `transfer/`
`jax.experimental.transfer`, `collective/` NCCL or gloo. `layout` and `wire` say how arrays lie on devices and cross,
`peers/` keeps strangers out.
"""
