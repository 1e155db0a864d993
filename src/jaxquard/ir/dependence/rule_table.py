"""All rules, by primitive name. What is in neither table is treated as not partitionable."""

from jaxquard.ir.dependence.rule import BodyRule, Rule
from jaxquard.ir.dependence.rules import (
    along_dim,
    branches,
    calls,
    contractions,
    elementwise,
    indexing,
    linear_algebra,
    loops,
    randomness,
    reductions,
    shapes,
    slices,
    windows,
)

RULES: dict[str, Rule] = (
    elementwise.RULES  # one element from one element of each input
    | shapes.RULES  # reshape, transpose, broadcast
    | reductions.RULES  # sums and the like over dims
    | contractions.RULES  # products and convolutions
    | slices.RULES  # parts of an array, and arrays from parts
    | indexing.RULES  # gather and scatter
    | along_dim.RULES  # along one dim, independently for the others
    | windows.RULES  # sliding windows
    | randomness.RULES  # keys and random bits
    | linear_algebra.RULES  # factorisations of the last dims
)

BODY_RULES: dict[str, BodyRule] = calls.RULES | branches.RULES | loops.RULES
