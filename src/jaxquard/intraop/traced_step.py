"""The user's step as one flat jaxpr: calls opened, checkpoints opened, arguments named.

The analysis reads equations one by one, so everything that can stand in one list does. Scans, conds and whiles stay
as they are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from jaxquard.ir.jaxpr_tools import Jaxpr, with_constants_as_inputs
from jaxquard.ir.step import Step
from jaxquard.pipeline.inline_calls import inline_calls
from jaxquard.pipeline.open_checkpoints import open_in

_CHECKPOINTS = ("remat2", "checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """A step with the names of its arguments.

    Attributes:
        jaxpr: its inputs are the flat arguments, then what the step closed over.
        constants: values of those last inputs.
        input_names: of every input, as a user would write it: `state['params']['w']`.
        result_of_input: for each input, the result that replaces it in the next step; None for data.
        in_tree, out_tree: how the flat arguments and results are put together.
    """

    jaxpr: Jaxpr
    constants: tuple[Any, ...] = field(repr=False, compare=False)
    input_names: tuple[str, ...]
    result_of_input: tuple[int | None, ...]
    in_tree: Any = field(repr=False, compare=False)
    out_tree: Any = field(repr=False, compare=False)

    @property
    def num_args(self) -> int:
        """Inputs that are arguments."""
        return len(self.jaxpr.invars) - len(self.constants)


def trace_step(step: Callable[..., Any], args: Sequence[Any]) -> TracedStep:
    """Traces a step for arguments of these types; what the step itself raises goes to the user as it is."""
    closed, results = jax.make_jaxpr(step, return_shape=True)(*jax.tree.map(_type_of, tuple(args)))
    jaxpr, constants = with_constants_as_inputs(closed)
    in_tree = jax.tree.structure(tuple(args))
    leaves, out_tree = jax.tree.flatten(results)
    opened = _open_all(jaxpr, constants)
    names = argument_names(args)
    num_constants = len(opened.constants)
    pairs = _pair_state(args, results, num_leaves=len(leaves))
    return TracedStep(
        jaxpr=opened.jaxpr,
        constants=opened.constants,
        input_names=(*names, *(f"constant {position}" for position in range(num_constants))),
        result_of_input=(*pairs, *(None,) * num_constants),
        in_tree=in_tree,
        out_tree=out_tree,
    )


def _open_all(jaxpr: Jaxpr, constants: tuple[Any, ...]) -> Step:
    num_args = len(jaxpr.invars) - len(constants)
    step = Step(jaxpr=jaxpr, constants=constants, arg_parts=((),) * num_args, result_parts=((),) * len(jaxpr.outvars))
    step = inline_calls(step)
    while any(equation.primitive.name in _CHECKPOINTS for equation in step.jaxpr.eqns):
        opened = open_in(step.jaxpr, is_wanted=lambda _: True, with_barrier=True)
        step = inline_calls(replace(step, jaxpr=opened))
    return step


def _type_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype alone: whether an array is placed, or weakly typed, must not change the step."""
    found = leaf if hasattr(leaf, "dtype") and hasattr(leaf, "shape") else jax.typeof(leaf)
    return jax.ShapeDtypeStruct(found.shape, found.dtype)


def argument_names(args: Sequence[Any]) -> list[str]:
    """The names of the leaves of arguments: `argument 0['params']['w']`."""
    paths, _ = jax.tree.flatten_with_path(tuple(args))
    return [f"argument {path[0].idx}{jax.tree_util.keystr(tuple(path[1:]))}" for path, _ in paths]


def _pair_state(args: Sequence[Any], results: Any, *, num_leaves: int) -> list[int | None]:
    """For each flat argument, the flat result of the same place in the state that the step returns.

    An argument is state if the step returns a tree of the same structure and types: alone, or as one item of a tuple.
    A single number is not, as a learning rate has the type of a loss; nor a single array, unless it is the first
    argument, as a batch may have the type of what is made of it.
    """
    items = list(results) if type(results) in (tuple, list) else [results]
    starts, start = [], 0
    for item in items:
        starts.append(start)
        start += len(jax.tree.leaves(item))
    assert start == num_leaves
    taken: set[int] = set()
    pairs: list[int | None] = []
    for place, arg in enumerate(args):
        found = next((i for i, item in enumerate(items) if i not in taken and _types(item) == _types(arg)), None)
        count = len(jax.tree.leaves(arg))
        if found is None or count == 0 or _is_data(arg, place):
            pairs.extend([None] * count)
        else:
            taken.add(found)
            pairs.extend(range(starts[found], starts[found] + count))
    return pairs


def _is_data(arg: Any, place: int) -> bool:
    is_leaf = jax.tree.structure(arg) == jax.tree.structure(0)
    return is_leaf and (place > 0 or not _type_of(arg).shape)


def _types(tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(found.shape, str(found.dtype)) for found in map(_type_of, leaves)]
