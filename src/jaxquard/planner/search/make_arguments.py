"""Makes the arguments that a plan runs with: those that the user gave, and for others values like those of a training.

The state is made by the user's `init` on the actors, each its own part, as a training makes it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxquard.planner.search.problem import PlanProblem
from jaxquard.runtime.remote_mesh import RemoteMesh


def make_arguments(problem: PlanProblem, *, state: Sequence[int], mesh: RemoteMesh) -> list[Any]:
    """Makes the arguments of a step.

    Args:
        state: the arguments that a step replaces.
        mesh: the actors.
    """
    # Loaded when it is asked for, as pricers are.
    from jaxquard.pricing.values.read_ranges import read_ranges

    looped = problem.trace_loop(problem.counts[0])
    found = read_ranges(looped.whole.jaxpr)[: len(looped.arg_types)]
    ranges = jax.tree.unflatten(looped.in_tree, found)
    arguments = []
    for number, (type_, given) in enumerate(zip(problem.args, problem.given, strict=True)):
        if problem.init is not None and number == 0:
            arguments.append(_make_state(type_["params"], given, ranges[0]["params"], problem.init, mesh))
        elif number in state:
            arguments.append(_make_state(type_, given, ranges[number], _same, mesh))
        else:
            arguments.append(jax.tree.map(_make_leaf, type_, given, ranges[number]))
    return arguments


def _same(tree: Any) -> Any:
    return jax.tree.map(jnp.asarray, tree)


def _make_state(types: Any, given: Any, ranges: Any, init: Callable[[Any], Any], mesh: RemoteMesh) -> Any:
    """Begins to make state from a tree of which the user gave the leaves or their types; large ones on the actors."""
    from jaxquard.pricing.values.make_values import is_large, make_traced

    leaves, tree = jax.tree.flatten(types)
    sources = list(zip(leaves, jax.tree.leaves(given), jax.tree.leaves(ranges), strict=True))
    is_traced = [not _is_given(own) and is_large(leaf) for leaf, own, _ in sources]
    passed = [_make_leaf(*source) for source, later in zip(sources, is_traced, strict=True) if not later]

    def build(*passed: Any) -> Any:
        arrays = iter(passed)
        made = [
            make_traced(leaf, values) if later else next(arrays)
            for (leaf, _, values), later in zip(sources, is_traced, strict=True)
        ]
        return init(jax.tree.unflatten(tree, made))

    return mesh.init(build, *passed)


def _make_leaf(type_: Any, given: Any, values: Any) -> Any:
    from jaxquard.pricing.values.make_values import make_host_array

    if not _is_given(given):
        return make_host_array(type_, values)
    return given if isinstance(given, jax.Array) else np.asarray(given, type_.dtype)


def _is_given(leaf: Any) -> bool:
    """Returns true for values, false for types."""
    return isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float | complex)
