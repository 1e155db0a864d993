"""`pipeline_scan`: a scan over layers, split into stages.

The stacked leaves go through `split_stack`, one equation that splits them along their first dim; its
transpose, `join_stack`, puts the gradients together again. The pass `split_stacks` later carries
that split through the whole step, so that no actor ever holds another's part.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from jaxquard.errors import MarkError
from jaxquard.ir.source import user_line
from jaxquard.pipeline.marks import pipeline_yield

split_stack_p = core.Primitive("split_stack")
split_stack_p.multiple_results = True
join_stack_p = core.Primitive("join_stack")


def pipeline_scan(
    body: Callable[[Any, Any], tuple[Any, Any]],
    carry: Any,
    stacked_params: Any,
    *,
    num_stages: int,
    name: str | None = None,
) -> tuple[Any, Any]:
    """`lax.scan` over layers, with a mark after each part but the last.

    Each actor stores and updates only its own part of the stacked leaves. When the layers do not
    divide evenly, the first stages take one more.

    Args:
        body: as for `lax.scan`: `(carry, params of one layer) -> (carry, output)`.
        carry: the input of the first layer.
        stacked_params: a pytree whose leaves have the layers as their first dim.
        num_stages: the number of stages to split the scan into.
        name: a prefix for the names of the stages: `name.0`, `name.1`, ...

    Returns:
        The last carry and the stacked outputs, as `lax.scan` returns them.

    Example:
        >>> def layer(hidden, weight):
        ...     return jnp.tanh(hidden @ weight), None
        >>> weights = jnp.ones((6, 4, 4))  # 6 stacked layers
        >>> hidden, _ = jq.pipeline_scan(layer, jnp.ones((2, 4)), weights, num_stages=3)
        >>> hidden.shape
        (2, 4)
    """
    leaves, tree = jax.tree.flatten(stacked_params)
    sizes = _part_sizes(leaves, num_stages)
    parts = [split_stack_p.bind(jnp.asarray(leaf), sizes=sizes) for leaf in leaves]
    outputs = []
    for stage in range(num_stages):
        layers = jax.tree.unflatten(tree, [part[stage] for part in parts])
        carry, output = lax.scan(body, carry, layers)
        outputs.append(output)
        if stage < num_stages - 1:
            carry = pipeline_yield(carry, name=f"{name}.{stage}" if name else None)
    joined = jax.tree.map(lambda *pieces: join_stack_p.bind(*pieces, sizes=sizes), *outputs)
    return carry, joined


def _part_sizes(leaves: list[Any], num_stages: int) -> tuple[int, ...]:
    lengths = {jnp.shape(leaf)[0] if jnp.ndim(leaf) else -1 for leaf in leaves}
    if len(lengths) != 1 or -1 in lengths:
        raise MarkError(
            f"pipeline_scan at {user_line()} needs leaves that agree on their first dim, the layers; "
            f"found {', '.join('a scalar' if size < 0 else str(size) for size in sorted(lengths)) or 'no leaf'}."
        )
    (length,) = lengths
    if not 1 <= num_stages <= length:
        raise MarkError(
            f"pipeline_scan at {user_line()} cannot split {length} layers into {num_stages} stages. "
            f"Use between 1 and {length}."
        )
    return tuple(length // num_stages + (stage < length % num_stages) for stage in range(num_stages))


def offsets(sizes: tuple[int, ...]) -> list[int]:
    """Returns the offset of each part."""
    return [sum(sizes[:part]) for part in range(len(sizes))]


def _split(stack: Any, *, sizes: tuple[int, ...]) -> list[Any]:
    return [lax.slice_in_dim(stack, start, start + size) for start, size in zip(offsets(sizes), sizes, strict=True)]


def _join(*parts: Any, sizes: tuple[int, ...]) -> Any:
    del sizes
    return lax.concatenate(parts, 0)


def _split_types(stack: Any, *, sizes: tuple[int, ...]) -> list[Any]:
    return [stack.update(shape=(size, *stack.shape[1:])) for size in sizes]


def _join_types(*parts: Any, sizes: tuple[int, ...]) -> Any:
    return parts[0].update(shape=(sum(sizes), *parts[0].shape[1:]))


def _zero(value: Any) -> Any:
    zero: Any = ad.Zero
    return zero.from_primal_value(value)


def _split_jvp(primals: Any, tangents: Any, *, sizes: tuple[int, ...]) -> tuple[Any, Any]:
    values = split_stack_p.bind(*primals, sizes=sizes)
    (tangent,) = tangents
    if isinstance(tangent, ad.Zero):
        return values, [_zero(value) for value in values]
    return values, split_stack_p.bind(tangent, sizes=sizes)


def _split_transpose(cotangents: Any, stack: Any, *, sizes: tuple[int, ...]) -> list[Any]:
    del stack
    if all(isinstance(cotangent, ad.Zero) for cotangent in cotangents):
        return [None]
    return [join_stack_p.bind(*map(ad.instantiate_zeros, cotangents), sizes=sizes)]


def _join_jvp(primals: Any, tangents: Any, *, sizes: tuple[int, ...]) -> tuple[Any, Any]:
    value = join_stack_p.bind(*primals, sizes=sizes)
    if all(isinstance(tangent, ad.Zero) for tangent in tangents):
        return value, _zero(value)
    return value, join_stack_p.bind(*map(ad.instantiate_zeros, tangents), sizes=sizes)


def _join_transpose(cotangent: Any, *parts: Any, sizes: tuple[int, ...]) -> list[Any]:
    if isinstance(cotangent, ad.Zero):
        return [None] * len(parts)
    return split_stack_p.bind(cotangent, sizes=sizes)


def _split_batch(values: Any, dims: Any, *, sizes: tuple[int, ...]) -> tuple[Any, Any]:
    moved = jnp.moveaxis(values[0], dims[0], 0)
    parts = jax.vmap(lambda stack: _split(stack, sizes=sizes))(moved)
    return parts, [0] * len(parts)


def _join_batch(values: Any, dims: Any, *, sizes: tuple[int, ...]) -> tuple[Any, Any]:
    joined = jax.vmap(lambda *parts: _join(*parts, sizes=sizes), in_axes=tuple(dims))(*values)
    return joined, 0


split_stack_p.def_impl(_split)
split_stack_p.def_abstract_eval(_split_types)
join_stack_p.def_impl(_join)
join_stack_p.def_abstract_eval(_join_types)
ad.primitive_jvps[split_stack_p] = _split_jvp
ad.primitive_transposes[split_stack_p] = _split_transpose
ad.primitive_jvps[join_stack_p] = _join_jvp
ad.primitive_transposes[join_stack_p] = _join_transpose
batching.primitive_batchers[split_stack_p] = _split_batch
batching.primitive_batchers[join_stack_p] = _join_batch
mlir.register_lowering(split_stack_p, mlir.lower_fun(_split, multiple_results=True))
mlir.register_lowering(join_stack_p, mlir.lower_fun(_join, multiple_results=False))
