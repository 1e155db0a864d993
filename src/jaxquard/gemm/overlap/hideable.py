"""The number of transfers of each algorithm that could run beside a product, by its structure alone.

MeshSlice     the gathers of all slices but the first, the scatters of all but the last: S - 1 in each direction; split
              for overlap, the sums of the last slice too, as they travel between products of the same slice
Collective    none: everything is gathered before the one product, or scattered after it
Wang, 1D      of the shifts of a ring of P chips those that are not inside the first iteration (or, where sums
              pass by, the last): P - P / iterations, twice as many if half of each goes either way; the whole
              collective of the other direction cannot hide
Cannon        the shifts between products, P - 1 in each direction; the skews cannot
SUMMA         the stages of all broadcasts and reductions but those of one iteration
"""

from collections.abc import Callable
from dataclasses import dataclass

from jaxquard.errors import GemmError
from jaxquard.gemm.algorithms.summa import num_parts
from jaxquard.gemm.algorithms.transfers.ring_broadcast import num_stages
from jaxquard.gemm.problem import AlgorithmOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Rings:
    """The mesh as an algorithm sees it: the chips along each direction, along Wang's ring, and those that sum C."""

    num_rows: int
    num_columns: int
    num_chips_of_ring: int
    num_chips_of_sums: int = 1


def _meshslice(options: AlgorithmOptions, rings: Rings) -> int:
    directions = (rings.num_rows > 1) + (rings.num_columns > 1)
    slices = options.slices or 1
    has_streams = options.split_for_overlap and slices > 1 and rings.num_chips_of_sums > 1
    return directions * (slices - 1) + has_streams


def _none(options: AlgorithmOptions, rings: Rings) -> int:
    return 0


def _ring(options: AlgorithmOptions, rings: Rings) -> int:
    chips = rings.num_chips_of_ring
    return (1 + options.bidirectional) * (chips - chips // (options.slices or chips))


def _cannon(options: AlgorithmOptions, rings: Rings) -> int:
    return 2 * (rings.num_rows - 1)


def _summa(options: AlgorithmOptions, rings: Rings) -> int:
    parts = num_parts(options, (rings.num_rows, rings.num_columns))
    iterations = options.slices or parts
    stages = sum(num_stages(chips, options.num_packets) for chips in (rings.num_rows, rings.num_columns))
    return (parts - parts // iterations) * stages


HIDEABLE: dict[str, Callable[[AlgorithmOptions, Rings], int]] = {
    "meshslice": _meshslice,
    "collective": _none,
    "wang": _ring,
    "summa": _summa,
    "cannon": _cannon,
    "1d_tp": _ring,
    "fsdp": _ring,
}


def num_hideable(algorithm: str, options: AlgorithmOptions, rings: Rings) -> int:
    """Returns the number of transfers of one product that could hide.

    Raises:
        GemmError: if nothing is known of an algorithm with this name.
    """
    if algorithm not in HIDEABLE:
        raise GemmError(f"no GeMM algorithm is called {algorithm!r}. Use one of: {', '.join(HIDEABLE)}.")
    return HIDEABLE[algorithm](options, rings)
