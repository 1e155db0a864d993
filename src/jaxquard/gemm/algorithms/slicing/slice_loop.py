"""Runs the slices of a product one after another: a few unrolled, many in a loop.

The steps are double-buffered: step s multiplies slice s, which the step before has gathered, while it gathers slice
s + 1. So step 0 finds its slice in the carry, and the last slice is multiplied after the last step. The first step is
never in the loop: it may make what the others update. An unrolled program grows with the number of slices (53,000 lines
of StableHLO for one layer with 128 slices), and so does the time to compile it; a loop has one size.

An iteration of the loop has two steps, so that the slice that one gathers and the slice that the other gathers have a
buffer each. With one step, the TPU's compiler copies each gathered slice to where the next iteration expects it.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax import lax

MAX_UNROLLED = 8
"""The most slices that are unrolled."""

Step = Callable[[int | jax.Array, Any], Any]


def run_slices(step: Step, carry: Any, *, slices: int) -> Any:
    """Runs steps 0 .. `slices - 2`, each from its number and the carry to the next carry.

    After the first, carries have the same arrays.
    """
    looped = (slices - 2) // 2 if slices > MAX_UNROLLED else 0
    if slices > 1:
        carry = step(0, carry)
    if looped:
        carry = lax.fori_loop(0, looped, lambda pair, carry: step(2 * pair + 2, step(2 * pair + 1, carry)), carry)
    for s in range(1 + 2 * looped, slices - 1):
        carry = step(s, carry)
    return carry
