"""Merges the all-reduces of a program as XLA does.

reassociate    a + b of two values that are summed over the same devices is summed once, after the addition; GPUs and
TPUs alone
combine        all-reduces of which none needs another run as one: one launch, and the bytes of all
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from jaxquard.cluster.speeds import GroupCollective
from jaxquard.pricing.roofline.mesh_times import MeshTimes
from jaxquard.pricing.roofline.prepare import PreparedJaxpr
from jaxquard.pricing.roofline.program_cost import CollectiveCost

# Up to so many bytes XLA combines all-reduces (`xla_gpu_all_reduce_combine_threshold_bytes`).
_MOST_COMBINED_BYTES = 30 * 2**20


def reassociate_sums(collectives: Sequence[CollectiveCost], prepared: PreparedJaxpr) -> list[CollectiveCost]:
    """Moves sums behind additions of two of them."""
    sums = {found.value: found for found in collectives if _is_plain(found)}
    gone: set[int] = set()
    for position, equation in enumerate(prepared.equations):
        if equation.name not in ("add", "add_any") or len(set(equation.inputs)) != 2:
            continue
        found = [sums.get(number) for number in equation.inputs]
        first, second = found
        if first is None or second is None or first.collective != second.collective:
            continue
        if any(len(prepared.users[number]) > 1 or number in prepared.outputs for number in equation.inputs):
            continue
        for number in equation.inputs:
            gone.add(number)
            del sums[number]
        (out,) = equation.outputs
        sums[out] = replace(first, position=position, value=out)
    kept = [found for found in collectives if not (_is_plain(found) and found.value in gone)]
    known = {found.value for found in kept if _is_plain(found)}
    return [*kept, *(found for value, found in sums.items() if value not in known)]


def time_collectives(
    collectives: Sequence[CollectiveCost], prepared: PreparedJaxpr, times: MeshTimes
) -> list[CollectiveCost]:
    """Returns the collectives with their seconds; those that run as one share them by their bytes."""
    groups = _combine(sorted(collectives, key=lambda found: found.position), prepared)
    timed = []
    for group in groups:
        first = group.members[0].collective
        time_s = times.collective_s(first.kind, first.axes, group.size_bytes)
        for found in group.members:
            share = found.collective.size_bytes / group.size_bytes if group.size_bytes else 1 / len(group.members)
            timed.append(replace(found, time_s=time_s * share))
    return timed


@dataclass(slots=True, kw_only=True)
class _Combined:
    """All-reduces that run as one.

    Attributes:
        first_use: the position of the first equation that needs one of them.
    """

    members: list[CollectiveCost] = field(default_factory=list)
    size_bytes: float = 0.0
    first_use: int = 0


def _combine(collectives: Sequence[CollectiveCost], prepared: PreparedJaxpr) -> list[_Combined]:
    groups: list[_Combined] = []
    open_groups: dict[tuple[int, ...], _Combined] = {}
    for found in collectives:
        size = found.collective.size_bytes
        first_use = prepared.first_uses[found.value]
        axes = found.collective.axes
        group = open_groups.get(axes) if _is_plain(found) else None
        fits = group is not None and group.first_use > found.position
        if group is not None and fits and group.size_bytes + size <= _MOST_COMBINED_BYTES:
            group.members.append(found)
            group.size_bytes += size
            group.first_use = min(group.first_use, first_use)
            continue
        group = _Combined(members=[found], size_bytes=size, first_use=first_use)
        groups.append(group)
        if _is_plain(found):
            open_groups[axes] = group
    return groups


def _is_plain(found: CollectiveCost) -> bool:
    return found.is_sum and found.collective.kind is GroupCollective.ALL_REDUCE
