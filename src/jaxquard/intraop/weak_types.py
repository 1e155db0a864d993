"""Weakly typed arguments: numbers that take the dtype of what they meet, as `0.1` and `jnp.array(0.1)` do.

A state that comes back from a checkpoint has strong types where the one that was planned for had weak ones. Nearly
always the step computes the same; where it does not, it returns other dtypes, and the plan is for another step.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jaxquard.errors import ShardingError
from jaxquard.intraop.step_fingerprint import WEAK, type_text
from jaxquard.intraop.traced_step import argument_names, trace_jaxpr, type_of


def as_planned(args: Sequence[Any], types: Mapping[str, str]) -> tuple[Any, ...]:
    """The types of arguments, each weak where that of the plan is.

    Args:
        types: of the plan's arguments, by name, as text.
    """
    leaves, tree = jax.tree.flatten(tuple(args))
    found = []
    for name, leaf in zip(argument_names(args), leaves, strict=True):
        own = type_of(leaf)
        is_planned_weak = types.get(name, type_text(own)).endswith(WEAK)
        found.append(jax.ShapeDtypeStruct(own.shape, own.dtype, weak_type=is_planned_weak))
    return jax.tree.unflatten(tree, found)


def check_weak_types(step: Callable[..., Any], args: Sequence[Any], types: Mapping[str, str]) -> None:
    """Refuses arguments for which `jax.jit` would return other dtypes, as other ones are weakly typed than planned.

    Raises:
        ShardingError: with the first that is.
    """
    own, planned = jax.tree.map(type_of, tuple(args)), as_planned(args, types)
    texts = [tuple(map(type_text, pair)) for pair in zip(jax.tree.leaves(planned), jax.tree.leaves(own), strict=True)]
    names = argument_names(args)
    different = [(name, *pair) for name, pair in zip(names, texts, strict=True) if pair[0] != pair[1]]
    if different and _result_types(step, own) != _result_types(step, planned):
        name, before, now = different[0]
        raise ShardingError(
            f"the plan was made for another step: {name} was {before} and is {now}. Search again for this one."
        )


def _result_types(step: Callable[..., Any], types: Sequence[Any]) -> Any:
    leaves, tree = jax.tree.flatten(trace_jaxpr(step, types)[1])
    return tree, [(leaf.shape, leaf.dtype) for leaf in leaves]
