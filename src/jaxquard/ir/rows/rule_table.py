"""All rules, by primitive name. Nothing is known of what a primitive without one returns."""

from jaxquard.ir.rows.paired import Rule
from jaxquard.ir.rows.rules import (
    contractions,
    control_flow,
    elementwise,
    indexing,
    randomness,
    reductions,
    row_by_row,
    shapes,
)

RULES: dict[str, Rule] = (
    elementwise.RULES  # one element from one element of each input
    | shapes.RULES  # elements that are moved, repeated, taken out or joined
    | reductions.RULES  # sums and the like over dims
    | contractions.RULES  # products and convolutions
    | indexing.RULES  # gather and scatter
    | row_by_row.RULES  # along some dims, independently for the others
    | randomness.RULES  # keys and random bits
    | control_flow.RULES  # calls, cond, while, scan
)
