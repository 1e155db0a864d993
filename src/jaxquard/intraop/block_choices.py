"""The choices of a block on all mesh axes together (CFP, sections 3.3 and 5.2)."""

import itertools
import math
from collections.abc import Mapping

from jaxquard.intraop.block import Block


def block_choices(block: Block, axes: Mapping[str, int], *, batch_axis: str | None) -> list[tuple[str, ...]]:
    """The choices of a block on all axes together.

    Args:
        batch_axis: this axis always cuts rows, where the block has any that it divides.
    """
    per_axis = []
    for axis, size in axes.items():
        fitting = [choice.name for choice in block.choices if choice.num_chunks % size == 0]
        if axis == batch_axis and "rows" in fitting:
            fitting = ["rows"]
        per_axis.append(fitting or [block.choices[0].name])
    sizes = tuple(axes.values())
    return [names for names in itertools.product(*per_axis) if _fits(block, names, sizes)]


def _fits(block: Block, names: tuple[str, ...], sizes: tuple[int, ...]) -> bool:
    """Whether axes that cut the same dim divide it together."""
    for name in set(names):
        parts = math.prod(size for other, size in zip(names, sizes, strict=True) if other == name)
        if block.choice(name).num_chunks % parts:
            return False
    return True
