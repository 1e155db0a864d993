"""`mark_layers`: marks a model that one did not write.

The function is traced when it is called, the marks are inserted into its jaxpr, and the result is evaluated in the
caller's trace: so gradients give the marks their twins, as they do for those that users write.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxquard.errors import MarkError
from jaxquard.ir.jaxpr_tools import Equation, Var, evaluate, make_jaxpr, rename, substitute
from jaxquard.ir.source import source_line
from jaxquard.pipeline.layers.find_ends import EndFinder
from jaxquard.pipeline.layers.flat_function import FlatFunction, flatten_function
from jaxquard.pipeline.layers.layer_path import key_components, parse_path
from jaxquard.pipeline.layers.live_values import LayerEnd
from jaxquard.pipeline.layers.split_scans import new_mark, split_scan_at
from jaxquard.pipeline.marks import Mark


def mark_layers(
    fn: Callable[..., Any], where: str | Sequence[str], *, num_stages: int | None = None
) -> Callable[..., Any]:
    """Marks the ends of layers in a model without touching it: a stage ends after each layer of `where`.

    Layers are found by their path: of the module, where the framework records it (Flax Linen, Haiku, Keras), and else
    of the parameters that it uses (Flax NNX, Equinox, plain pytrees). What comes before a path may be left out, and
    `*` matches any component. A layer that is checkpointed as a whole is marked after its checkpoint. In a scan over
    layers, `blocks[3]` is one iteration, and the stacked parameters are split as by `pipeline_scan`.

    Args:
        fn: a function of arrays, such as the loss or the model; it is pure, as for `jax.jit`.
        where: paths such as "blocks.3", "['params']['block_3']" or "encoder/layer_*"; or lines of source such as
            "model.py:41", whose results end a stage.
        num_stages: takes as many of the layers that match, so that the stages have equally many; by default a
            stage ends after each of them.

    Returns:
        A function like `fn`; arrays among its arguments are traced, everything else is passed on as it is.

    Example:
        >>> def loss(params, x):
        ...     for layer in params["layers"]:
        ...         x = jnp.tanh(x @ layer["kernel"])
        ...     return jnp.mean(x**2)
        >>> marked = jq.mark_layers(loss, "layers.*", num_stages=2)
        >>> params = {"layers": [{"kernel": jnp.ones((4, 4))} for _ in range(4)]}
        >>> str(jax.make_jaxpr(marked)(params, jnp.ones((2, 4)))).count("pipeline_yield")
        1
    """
    texts = _check_arguments(fn, where, num_stages)
    paths = [parse_path(text) for text in texts]

    @functools.wraps(fn)
    def marked(*args: Any, **kwargs: Any) -> Any:
        function, inputs, tree = _trace(fn, args, kwargs)
        finder = EndFinder(function, advice=_pass_as_argument(fn, texts))
        found = {end.order: end for path in paths for end in finder.find(path)}
        ends = [found[order] for order in sorted(found)]
        ends = _choose(ends, num_stages) if num_stages is not None else ends
        results = _evaluate(function, _insert(function, ends), inputs)
        return jax.tree.unflatten(tree, results)

    return marked


def _check_arguments(fn: Any, where: Any, num_stages: Any) -> list[str]:
    """Returns the paths of the layers."""
    if not callable(fn):
        raise MarkError(f"mark_layers wants a function of arrays, such as the loss, in first place; found {fn!r}.")
    texts = [where] if isinstance(where, str) else list(where) if isinstance(where, Iterable) else [where]
    if wrong := [text for text in texts if not isinstance(text, str) or not text.strip()]:
        raise MarkError(
            f"mark_layers wants paths of layers such as 'blocks.3', or lines such as 'model.py:41'; found {wrong[0]!r}."
        )
    is_count = num_stages is None or (isinstance(num_stages, int | np.integer) and num_stages >= 1)
    if not texts or not is_count:
        raise MarkError(
            f"mark_layers needs at least one layer and one stage; found where={where!r} and num_stages={num_stages!r}."
        )
    return texts


def _trace(fn: Callable[..., Any], args: Any, kwargs: Any) -> tuple[FlatFunction, list[Any], Any]:
    """Returns the function of the arrays among its arguments, these, and the tree of its results."""
    leaves, tree = jax.tree_util.tree_flatten_with_path((args, kwargs))
    dynamic = [position for position, (_, leaf) in enumerate(leaves) if _is_array(leaf)]

    def of_arrays(*arrays: Any) -> Any:
        values = [leaf for _, leaf in leaves]
        for position, array in zip(dynamic, arrays, strict=True):
            values[position] = array
        own_args, own_kwargs = jax.tree.unflatten(tree, values)
        return fn(*own_args, **own_kwargs)

    inputs = [leaves[position][1] for position in dynamic]
    closed, out_types = jax.make_jaxpr(of_arrays, return_shape=True)(*inputs)
    paths = []
    for position in dynamic:
        _, argument, *path = leaves[position][0]
        paths.append(("".join(key_components([argument])), *key_components(path)))
    return flatten_function(closed, paths), inputs, jax.tree.structure(out_types)


def _is_array(leaf: Any) -> bool:
    if isinstance(leaf, np.ndarray):
        return any(jnp.issubdtype(leaf.dtype, kind) for kind in (np.number, np.bool_))
    return isinstance(leaf, jax.Array)


def _pass_as_argument(fn: Any, texts: Sequence[str]) -> str:
    """Returns the advice for a module in place of a function; "" for a function."""
    if not any(map(_is_array, jax.tree.leaves(fn))):
        return ""
    where = repr(texts[0]) if len(texts) == 1 else repr(list(texts))
    return (
        f"The arrays of {type(fn).__name__} are no arguments of the function: pass it as one, as in "
        f"mark_layers(lambda model, *args: model(*args), {where})(model, ...)."
    )


def _choose(ends: Sequence[LayerEnd], num_stages: int) -> list[LayerEnd]:
    if num_stages > len(ends):
        raise MarkError(
            f"mark_layers: num_stages={num_stages}, but only {len(ends)} layers match "
            f"({', '.join(end.name for end in ends)}). Use at most {len(ends)} stages, or match more layers."
        )
    sizes = [len(ends) // num_stages + (stage < len(ends) % num_stages) for stage in range(num_stages)]
    return [ends[sum(sizes[: stage + 1]) - 1] for stage in range(num_stages - 1)]


def _insert(function: FlatFunction, ends: Sequence[LayerEnd]) -> tuple[list[Equation], list[Any]]:
    """Returns the equations with marks, and the outputs."""
    renamed: dict[Var, Any] = {}
    equations: list[Equation] = []
    for position, original in enumerate(function.equations):
        equation = rename(original, renamed)
        here = [end for end in ends if end.position == position]
        splits = {end.iteration: _mark(end, original) for end in here if end.iteration >= 0}
        equations.extend(split_scan_at(equation, splits) if splits else [equation])
        whole = [end for end in here if end.iteration < 0]
        if whole:
            values = list(dict.fromkeys(value for end in whole for value in end.values))
            mark = new_mark(_mark(whole[0], original), [substitute(value, renamed) for value in values], like=original)
            equations.append(mark)
            renamed.update(zip(values, mark.outvars, strict=True))
    return equations, [substitute(atom, renamed) for atom in function.outputs]


def _mark(end: LayerEnd, last: Equation) -> Mark:
    return Mark(name=end.name, source=source_line(last))


def _evaluate(function: FlatFunction, marked: tuple[list[Equation], list[Any]], inputs: list[Any]) -> list[Any]:
    equations, outputs = marked
    jaxpr = make_jaxpr([*function.constants, *function.inputs], equations, outputs)
    return evaluate(jaxpr)(*function.constants.values(), *inputs)
