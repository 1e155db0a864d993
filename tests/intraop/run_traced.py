"""Runs a traced step on whole arguments, with nothing of jaxquard but its jaxpr."""

from typing import Any

import jax
import numpy as np
from jax.extend import core

from jaxquard.intraop.step.traced_step import TracedStep


def run_traced(traced: TracedStep, args: Any) -> Any:
    """The results of a step; stacks are taken apart and put together by NumPy."""
    leaves = jax.tree.leaves(args)
    parts = [np.asarray(leaves[part.leaf])[part.index] for part in traced.inputs]
    build: Any = core.ClosedJaxpr
    outputs = jax.jit(core.jaxpr_as_fun(build(traced.jaxpr, ())))(*parts, *traced.constants)
    results: dict[int, dict[tuple[int, ...], Any]] = {}
    for part, value in zip(traced.outputs, outputs, strict=True):
        results.setdefault(part.leaf, {})[part.index] = np.asarray(value)
    return jax.tree.unflatten(traced.out_tree, [_whole(results[leaf]) for leaf in range(len(results))])


def _whole(parts: dict[tuple[int, ...], Any]) -> Any:
    if list(parts) == [()]:
        return parts[()]
    count = 1 + max(index[0] for index in parts)
    inner = [{index[1:]: value for index, value in parts.items() if index[0] == place} for place in range(count)]
    return np.stack([_whole(found) for found in inner])
