"""All rules, by primitive name. A primitive in neither table is treated as not partitionable."""

from jaxquard.ir.dependence.rule import BodyRule, Rule
from jaxquard.ir.dependence.rules import (
    along_dim,
    contractions,
    control_flow,
    elementwise,
    indexing,
    randomness,
    reductions,
    shapes,
    slices,
)

RULES: dict[str, Rule] = (
    elementwise.RULES  # one element from one element of each input
    | shapes.RULES  # reshape, transpose, broadcast
    | reductions.RULES  # sums and the like over dims
    | contractions.RULES  # products and convolutions
    | slices.RULES  # parts of an array, and arrays from parts
    | indexing.RULES  # gather and scatter
    | along_dim.RULES  # along some dims, independently for the others
    | randomness.RULES  # keys and random bits
)

BODY_RULES: dict[str, BodyRule] = control_flow.RULES  # calls, cond, while, scan
