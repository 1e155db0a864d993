"""The user's step as one flat jaxpr: calls, checkpoints and scans over layers opened, arguments named.

Fused products, such as queries, keys and values of one weight, have their parts apart (`fused`), and the weight
gradients of loops over time are summed behind them (`sum_after_loop`).

The analysis reads equations one by one, so everything that can stand in one list does. Other scans, conds and whiles
stay as they are.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax

from jaxquard._jax_compat import without_mesh
from jaxquard.intraop.step.find_state import StatePairs, changed_dtype, pair_state
from jaxquard.intraop.step.fused.separate_parts import separate_parts
from jaxquard.intraop.step.open_calls import open_calls
from jaxquard.intraop.step.open_scans import FlatStep, open_scans
from jaxquard.intraop.step.parts import LeafPart, names_of_parts, pair_parts, whole_leaves
from jaxquard.intraop.step.sum_after_loop import sum_after_loops
from jaxquard.intraop.step.update_distance import UpdateDistances
from jaxquard.ir.array_leaves import advice_for
from jaxquard.ir.jaxpr_tools import Jaxpr, with_constants_as_inputs


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """A step with the names of its arguments.

    Attributes:
        jaxpr: its inputs are the flat arguments, stacks of layers in parts, then what the step closed over.
        constants: values of those last inputs.
        arg_names: of every flat argument, as a user would write it: `argument 0['params']['w']`.
        arg_types: of every flat argument.
        inputs: the argument, or part of one, that each input of the jaxpr is.
        outputs: the result, or part of one, that each output is.
        input_names: of every input.
        result_of_input: for each input, the output that replaces it in the next step; None for data.
        in_tree, out_tree: the pytree structures of the arguments and of the result.
        notes: remarks to the user about its state.
    """

    jaxpr: Jaxpr
    constants: tuple[Any, ...] = field(repr=False, compare=False)
    arg_names: tuple[str, ...]
    arg_types: tuple[jax.ShapeDtypeStruct, ...] = field(repr=False)
    inputs: tuple[LeafPart, ...] = field(repr=False)
    outputs: tuple[LeafPart, ...] = field(repr=False)
    input_names: tuple[str, ...]
    result_of_input: tuple[int | None, ...]
    in_tree: Any = field(repr=False, compare=False)
    out_tree: Any = field(repr=False, compare=False)
    notes: tuple[str, ...] = ()

    @property
    def num_args(self) -> int:
        """The number of inputs that are arguments or parts of them."""
        return len(self.inputs)


def trace_step(step: Callable[..., Any], args: Sequence[Any]) -> TracedStep:
    """Traces a step for arguments of these types; an error of the step itself is raised unchanged."""
    types = types_of(args)
    closed, results = trace_jaxpr(step, types)
    arg_types, in_tree = jax.tree.flatten(types)
    leaves, out_tree = jax.tree.flatten(results)
    jaxpr, constants = open_calls(*with_constants_as_inputs(closed))
    state = pair_state(in_tree, arg_types, out_tree, leaves, distances=UpdateDistances(jaxpr))
    pairs = state.results
    flat = FlatStep(
        jaxpr=jaxpr, constants=constants, inputs=whole_leaves(len(arg_types)), outputs=whole_leaves(len(leaves))
    )
    flat = open_scans(flat, results=pairs)
    names = tuple(argument_names(args))
    num_constants = len(flat.constants)
    return TracedStep(
        jaxpr=separate_parts(sum_after_loops(flat.jaxpr)),
        constants=flat.constants,
        arg_names=names,
        arg_types=tuple(arg_types),
        inputs=flat.inputs,
        outputs=flat.outputs,
        input_names=(*names_of_parts(flat.inputs, names), *(f"constant {place}" for place in range(num_constants))),
        result_of_input=(*pair_parts(flat.inputs, flat.outputs, dict(enumerate(pairs))), *(None,) * num_constants),
        in_tree=in_tree,
        out_tree=out_tree,
        notes=_state_notes(names, state, changed_dtype(in_tree, arg_types, out_tree, leaves, pairs), arg_types, leaves),
    )


def trace_jaxpr(step: Callable[..., Any], types: Sequence[Any]) -> tuple[Any, Any]:
    """Returns the jaxpr of a step, and the types of its results.

    They are the same inside and outside of `jax.set_mesh`, unless the step itself asks for that mesh.
    """
    trace = jax.make_jaxpr(step, return_shape=True)
    if jax.sharding.get_abstract_mesh().empty:
        return trace(*types)
    try:
        with without_mesh():
            return trace(*types)
    except Exception:  # Whatever it was, it is raised again if it is real.
        return trace(*types)


def types_of(args: Sequence[Any]) -> tuple[Any, ...]:
    """Returns the types of the leaves of arguments.

    Raises:
        TypeError: if a leaf is neither an array nor a number.
    """

    def of_leaf(path: Any, leaf: Any) -> jax.ShapeDtypeStruct:
        try:
            return type_of(leaf)
        except TypeError as error:
            name = f"argument {path[0].idx}{jax.tree_util.keystr(path[1:])}"
            kind = type(leaf).__name__
            cure = advice_for(leaf, args, otherwise="Bind it to the step with functools.partial.")
            raise TypeError(
                f"a step takes arrays, their types and numbers; {name} is {leaf!r} of type {kind}. {cure}"
            ) from error

    return jax.tree_util.tree_map_with_path(of_leaf, tuple(args))


def type_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """Returns the shape, dtype and weak type of a leaf: the placement of an array must not change the step.

    A Python number is weakly typed, as in `jax.jit`, and so is `jnp.array(0.1)`: it takes the dtype of what it meets.
    """
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(leaf.shape, _in_jax(leaf.dtype), weak_type=is_weak(leaf))
    found = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(found.shape, found.dtype, weak_type=is_weak(leaf))


def _in_jax(dtype: Any) -> Any:
    """Returns the dtype that JAX gives to an array: types of NumPy arrays may have 64 bits where JAX has 32."""
    is_key = jax.dtypes.issubdtype(dtype, jax.dtypes.extended)
    return dtype if is_key else jax.dtypes.canonicalize_dtype(dtype)


def is_weak(leaf: Any) -> bool:
    """Returns true for a weakly typed leaf; random keys have no such property."""
    if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        return getattr(leaf, "weak_type", False)
    return isinstance(leaf, bool | int | float | complex) and jax.typeof(leaf).weak_type


def argument_names(args: Sequence[Any]) -> list[str]:
    """Returns the names of the leaves of arguments: `argument 0['params']['w']`."""
    paths, _ = jax.tree.flatten_with_path(tuple(args))
    return [f"argument {path[0].idx}{jax.tree_util.keystr(tuple(path[1:]))}" for path, _ in paths]


def argument_number(name: str) -> int:
    """Returns the number of the argument of a leaf, by its name."""
    found = re.match(r"argument (\d+)", name)
    assert found is not None, name
    return int(found[1])


def _listed(numbers: Sequence[int]) -> str:
    *first, last = map(str, numbers)
    return f"{', '.join(first)} and {last}"


def _state_notes(
    names: Sequence[str],
    state: StatePairs,
    changed: tuple[int, int] | None,
    arg_types: Sequence[Any],
    result_types: Sequence[Any],
) -> tuple[str, ...]:
    """Returns a remark on an argument that may have been meant to be state, and is not."""
    if changed is not None:
        name, before, after = names[changed[0]], arg_types[changed[0]].dtype, result_types[changed[1]].dtype
        return (
            f"{name} is {before.name} and comes back as {after.name}, so its argument is taken for data, not for "
            "state: it is not donated, and ZeRO does not shard it. Cast it back before you return it.",
        )
    if state.unclear:
        numbers = [argument_number(names[leaf]) for leaf in state.unclear]
        taken = [number for number, leaf in zip(numbers, state.unclear, strict=True) if state.results[leaf] is not None]
        were = f"argument {taken[0]} is" if len(taken) == 1 else f"arguments {_listed(taken)} are"
        return (
            f"arguments {_listed(numbers)} have the same form, and nothing shows which of them the step returns anew: "
            f"{were} taken for state, and donated. If that is wrong, give them different forms, say one in a dict or a "
            "tuple.",
        )
    if names and all(result is None for result in state.results):
        return (
            "no argument is state: none comes back with the same structure, shapes and dtypes, so nothing is donated, "
            "and the optimizer is not taken into account. If the step trains, return the new weights and optimizer "
            "state in the form in which it takes them: `return params, moments, loss`.",
        )
    return ()
