"""The dependences of a traced function: the operations that each must wait for, barriers included."""

from collections.abc import Iterator
from typing import Any

import jax


def all_primitives(jaxpr: Any) -> Iterator[str]:
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from all_primitives(inner)


def waits_for(jaxpr: Any) -> list[tuple[str, set[int]]]:
    """Of each equation its primitive's name, and the numbers of all equations that must be done before."""
    made_by: dict[Any, set[int]] = {}
    found = []
    for number, equation in enumerate(jaxpr.eqns):
        before = set().union(*(made_by.get(var, set()) for var in equation.invars if not hasattr(var, "val")))
        found.append((equation.primitive.name, before))
        for var in equation.outvars:
            made_by[var] = before | {number}
    return found


def shard_map_body(jaxpr: Any) -> Any:
    """The body of the one `shard_map` of a traced function."""
    (equation,) = [equation for equation in jaxpr.eqns if equation.primitive.name == "shard_map"]
    body = equation.params["jaxpr"]
    return getattr(body, "jaxpr", body)
