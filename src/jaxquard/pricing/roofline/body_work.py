"""The work of an equation that runs a body: a loop, a branch, a call, or a `shard_map` with its own collectives.

A loop runs its body as often as it says; one that does not say (`while_loop`) counts once. Of branches the longest
counts. What a `shard_map` holds is already that of one device.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from jaxquard.cluster.speeds import GroupCollective
from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, size_bytes, sub_jaxprs
from jaxquard.ir.operations import REARRANGING
from jaxquard.pricing.roofline.equation_partitions import ProductSizes, product_sizes

_COLLECTIVES = {
    "all_gather": GroupCollective.ALL_GATHER,
    "all_gather_invariant": GroupCollective.ALL_GATHER,
    "reduce_scatter": GroupCollective.REDUCE_SCATTER,
    "psum": GroupCollective.ALL_REDUCE,
    "psum_invariant": GroupCollective.ALL_REDUCE,
    "pmax": GroupCollective.ALL_REDUCE,
    "pmin": GroupCollective.ALL_REDUCE,
    "all_to_all": GroupCollective.ALL_TO_ALL,
    "ppermute": GroupCollective.PERMUTE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyProduct:
    """A product in a body, with its types."""

    sizes: ProductSizes
    dtype: Any
    output_item_bytes: int
    times: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyWork:
    """All that a body does.

    Attributes:
        is_local: whether it is the work of one device, as in a `shard_map`, and not of all of them.
        size_bytes: that its other kernels read and write.
        collectives: kind, names of the mesh axes, bytes, and how often.
    """

    is_local: bool
    products: tuple[BodyProduct, ...]
    size_bytes: float
    collectives: tuple[tuple[GroupCollective, tuple[str, ...], float, int], ...]

    @property
    def flops(self) -> float:
        return sum(product.sizes.flops * product.times for product in self.products)


def find_body_work(equation: Equation) -> BodyWork:
    """Returns the work of the bodies of an equation."""
    products: list[BodyProduct] = []
    collectives: list[tuple[GroupCollective, tuple[str, ...], float, int]] = []
    traffic = 0.0
    for inner, times in _equations(equation, 1):
        sizes = product_sizes(inner)
        kind = _COLLECTIVES.get(inner.primitive.name)
        if sizes is not None:
            out = inner.outvars[0].aval
            products.append(
                BodyProduct(
                    sizes=sizes, dtype=inner.invars[0].aval.dtype, output_item_bytes=out.dtype.itemsize, times=times
                )
            )
        elif kind is not None:
            moved = max(_bytes(inner.invars), _bytes(inner.outvars))
            collectives.append((kind, _axis_names(inner.params), moved, times))
        elif inner.primitive.name not in REARRANGING:
            traffic += times * (_bytes(inner.invars) + _bytes(inner.outvars))
    return BodyWork(
        is_local=equation.primitive.name == "shard_map",
        products=tuple(products),
        size_bytes=traffic,
        collectives=tuple(collectives),
    )


def _equations(equation: Equation, times: int) -> Iterator[tuple[Equation, int]]:
    """Yields the equations of all bodies that have none themselves, and how often each runs."""
    bodies = sub_jaxprs(equation)
    if equation.primitive.name == "cond":
        bodies = [max(bodies, key=_num_equations)] if bodies else []
    often = times * int(equation.params.get("length", 1) if equation.primitive.name == "scan" else 1)
    for body in bodies:
        for inner in body.eqns:
            if sub_jaxprs(inner):
                yield from _equations(inner, often)
            else:
                yield inner, often


def _num_equations(jaxpr: Jaxpr) -> int:
    return sum(1 + sum(map(_num_equations, sub_jaxprs(equation))) for equation in jaxpr.eqns)


def _axis_names(params: Mapping[str, Any]) -> tuple[str, ...]:
    names = params.get("axis_name", params.get("axes", ()))
    names = names if isinstance(names, tuple | list) else (names,)
    return tuple(name for name in names if isinstance(name, str))


def _bytes(atoms: Any) -> float:
    arrays = (atom.aval for atom in atoms if hasattr(atom.aval, "dtype"))
    return math.fsum(size_bytes(aval) for aval in arrays)
