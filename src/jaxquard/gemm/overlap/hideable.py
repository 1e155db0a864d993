"""How many transfers of each algorithm could run beside a product, by its structure alone.

MeshSlice     the gathers of all slices but the first, the scatters of all but the last: S - 1 in each direction
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
from jaxquard.gemm.algorithms.product import Product
from jaxquard.gemm.algorithms.ring_broadcast import num_stages
from jaxquard.gemm.algorithms.summa import num_parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Rings:
    """The mesh as an algorithm sees it: how many chips lie along each direction, and along Wang's ring."""

    num_rows: int
    num_columns: int
    num_chips_of_ring: int


def _meshslice(product: Product, rings: Rings) -> int:
    directions = (rings.num_rows > 1) + (rings.num_columns > 1)
    return directions * ((product.slices or 1) - 1)


def _none(product: Product, rings: Rings) -> int:
    return 0


def _ring(product: Product, rings: Rings) -> int:
    chips = rings.num_chips_of_ring
    return (1 + product.both_ways) * (chips - chips // (product.slices or chips))


def _cannon(product: Product, rings: Rings) -> int:
    return 2 * (rings.num_rows - 1)


def _summa(product: Product, rings: Rings) -> int:
    parts = num_parts(product, num_rows=rings.num_rows, num_columns=rings.num_columns)
    iterations = product.slices or parts
    stages = sum(num_stages(chips, product.num_packets) for chips in (rings.num_rows, rings.num_columns))
    return (parts - parts // iterations) * stages


HIDEABLE: dict[str, Callable[[Product, Rings], int]] = {
    "meshslice": _meshslice,
    "collective": _none,
    "wang": _ring,
    "summa": _summa,
    "cannon": _cannon,
    "1d_tp": _ring,
    "fsdp": _ring,
}


def num_hideable(algorithm: str, product: Product, rings: Rings) -> int:
    """Of the transfers of one product, how many could hide.

    Raises:
        GemmError: if nothing is known of an algorithm with this name.
    """
    if algorithm not in HIDEABLE:
        raise GemmError(f"no GeMM algorithm is called {algorithm!r}. Use one of: {', '.join(HIDEABLE)}.")
    return HIDEABLE[algorithm](product, rings)
