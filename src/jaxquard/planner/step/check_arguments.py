"""The difference between the arguments that a step was planned for and those that it gets."""

from collections.abc import Sequence
from typing import Any

import jax

from jaxquard.errors import PlanError
from jaxquard.intraop.step.traced_step import type_of
from jaxquard.runtime.remote_array import RemoteArray


def check_arguments(types: Sequence[Any], args: Sequence[Any]) -> None:
    """Checks that a step gets arguments of the types that it was planned for.

    Raises:
        PlanError: naming the leaf that differs.
    """
    if len(args) != len(types):
        raise PlanError(f"the step was planned for {len(types)} arguments, found {len(args)}. Pass as many.")
    for number, (wanted, found) in enumerate(zip(types, args, strict=True)):
        different = find_difference(wanted, found, name=f"argument {number}")
        if different:
            raise PlanError(f"the step was planned for others: {different} Pass such arguments, or plan again.")


def find_difference(wanted: Any, found: Any, *, name: str = "") -> str:
    """Says in which leaf two pytrees differ in structure, shape or dtype; "" if they do not.

    Args:
        wanted: types.
        found: arrays, here or on actors, or their types.
        name: of the pytrees; it stands in front of the path of a leaf.
    """
    if jax.tree.structure(wanted) == jax.tree.structure(found):
        return _type_difference(wanted, found, name)
    paths, others = (
        [name + jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
        for tree in (wanted, found)
    )
    missing = next((path for path in paths if path not in others), None)
    if missing is not None:
        return f"{missing} is missing."
    more = next((path for path in others if path not in paths), None)
    return f"{name or 'a pytree'} has containers of other types." if more is None else f"{more} is new."


def _type_difference(wanted: Any, found: Any, name: str) -> str:
    leaves = zip(jax.tree_util.tree_leaves_with_path(wanted), jax.tree.leaves(found), strict=True)
    for (path, one), other in leaves:
        one, other = type_of(one), other if isinstance(other, RemoteArray) else type_of(other)
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            types = f"{one.dtype}{list(one.shape)}, and is {other.dtype}{list(other.shape)}"
            return f"{name}{jax.tree_util.keystr(path)} was {types}."
    return ""
