"""The user's step as one flat jaxpr: calls, checkpoints and scans over layers opened, arguments named.

The analysis reads equations one by one, so everything that can stand in one list does. Other scans, conds and whiles
stay as they are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from jaxquard.intraop.open_calls import open_calls
from jaxquard.intraop.open_scans import FlatStep, open_scans
from jaxquard.intraop.step_parts import Part, names_of_parts, pair_parts, whole_leaves
from jaxquard.ir.jaxpr_tools import Jaxpr, with_constants_as_inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """A step with the names of its arguments.

    Attributes:
        jaxpr: its inputs are the flat arguments, stacks of layers in parts, then what the step closed over.
        constants: values of those last inputs.
        arg_names: of every flat argument, as a user would write it: `argument 0['params']['w']`.
        arg_types: of every flat argument.
        inputs: which argument, or part of one, each input of the jaxpr is.
        outputs: which result, or part of one, each output is.
        input_names: of every input.
        result_of_input: for each input, the output that replaces it in the next step; None for data.
        in_tree, out_tree: how the flat arguments and results are put together.
    """

    jaxpr: Jaxpr
    constants: tuple[Any, ...] = field(repr=False, compare=False)
    arg_names: tuple[str, ...]
    arg_types: tuple[jax.ShapeDtypeStruct, ...] = field(repr=False)
    inputs: tuple[Part, ...] = field(repr=False)
    outputs: tuple[Part, ...] = field(repr=False)
    input_names: tuple[str, ...]
    result_of_input: tuple[int | None, ...]
    in_tree: Any = field(repr=False, compare=False)
    out_tree: Any = field(repr=False, compare=False)

    @property
    def num_args(self) -> int:
        """Inputs that are arguments or parts of them."""
        return len(self.inputs)


def trace_step(step: Callable[..., Any], args: Sequence[Any]) -> TracedStep:
    """Traces a step for arguments of these types; what the step itself raises goes to the user as it is."""
    types = jax.tree.map(_type_of, tuple(args))
    closed, results = jax.make_jaxpr(step, return_shape=True)(*types)
    arg_types, in_tree = jax.tree.flatten(types)
    leaves, out_tree = jax.tree.flatten(results)
    pairs = _pair_state(args, results, num_leaves=len(leaves))
    jaxpr, constants = open_calls(*with_constants_as_inputs(closed))
    flat = FlatStep(
        jaxpr=jaxpr, constants=constants, inputs=whole_leaves(len(arg_types)), outputs=whole_leaves(len(leaves))
    )
    flat = open_scans(flat, results=pairs)
    names = tuple(argument_names(args))
    num_constants = len(flat.constants)
    return TracedStep(
        jaxpr=flat.jaxpr,
        constants=flat.constants,
        arg_names=names,
        arg_types=tuple(arg_types),
        inputs=flat.inputs,
        outputs=flat.outputs,
        input_names=(*names_of_parts(flat.inputs, names), *(f"constant {place}" for place in range(num_constants))),
        result_of_input=(*pair_parts(flat.inputs, flat.outputs, dict(enumerate(pairs))), *(None,) * num_constants),
        in_tree=in_tree,
        out_tree=out_tree,
    )


def _type_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype alone: whether an array is placed, or weakly typed, must not change the step.

    A Python number is weakly typed, as in `jax.jit`: it takes the dtype of what it meets.
    """
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    found = jax.typeof(leaf)
    is_number = isinstance(leaf, bool | int | float | complex)
    return jax.ShapeDtypeStruct(found.shape, found.dtype, weak_type=is_number and found.weak_type)


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
