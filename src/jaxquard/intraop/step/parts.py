"""Stacked arguments and results in parts: one input or output of the flat step for each layer of a stacked leaf.

A step whose layers stand in a `lax.scan` is opened into one input for each layer of a stacked leaf. Outside, the leaf
is whole, with the layers as its first dim.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import PartitionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LeafPart:
    """An argument or a result, or a part of one.

    Attributes:
        leaf: its number among the flat arguments, or results.
        index: which part: `leaf[index]`; nothing for one that is whole.
    """

    leaf: int
    index: tuple[int, ...] = ()


def whole_leaves(count: int) -> tuple[LeafPart, ...]:
    """Returns leaves that are not split."""
    return tuple(LeafPart(leaf=leaf) for leaf in range(count))


def by_leaf(parts: Sequence[LeafPart]) -> dict[int, list[int]]:
    """Returns the places of the parts of each leaf, in order of their indices."""
    found: dict[int, list[int]] = {}
    for place in sorted(range(len(parts)), key=lambda place: (parts[place].leaf, parts[place].index)):
        found.setdefault(parts[place].leaf, []).append(place)
    return found


def stacked_specs(parts: Sequence[LeafPart], specs: Sequence[PartitionSpec]) -> list[PartitionSpec]:
    """Returns the sharding of each leaf: not along the layers, and that of most of its parts; of equals the first."""
    found = []
    for _, places in sorted(by_leaf(parts).items()):
        # Parts need not be of one depth, as where one layer of a stack is a stack again.
        counts = Counter(_trimmed((*(None,) * len(parts[place].index), *specs[place])) for place in places)
        found.append(PartitionSpec(*counts.most_common(1)[0][0]))
    return found


def names_of_parts(parts: Sequence[LeafPart], names: Sequence[str]) -> tuple[str, ...]:
    """Returns names such as `argument 0['layers']['w'][3]`."""
    return tuple(names[part.leaf] + "".join(f"[{place}]" for place in part.index) for part in parts)


def pair_parts(
    inputs: Sequence[LeafPart], outputs: Sequence[LeafPart], results: Mapping[int, int | None]
) -> tuple[int | None, ...]:
    """Returns for each input the output that replaces it in the next step; None for data.

    Args:
        results: for each argument, the result that replaces it.
    """
    places = {part: place for place, part in enumerate(outputs)}
    paired: list[int | None] = []
    for part in inputs:
        result = results.get(part.leaf)
        paired.append(None if result is None else places[LeafPart(leaf=result, index=part.index)])
    return tuple(paired)


def _trimmed(entries: tuple[Any, ...]) -> tuple[Any, ...]:
    while entries and entries[-1] is None:
        entries = entries[:-1]
    return entries
