"""The oracle of a step: a plain Python loop over the microbatches, under `jax.jit`.

A step under test is written as a function of the loop that it runs, `step(accumulate, state, batch)`, and
calls `accumulate(fn, reduce)(batch)`. The oracle passes the loop below, which shares no code with
`accumulate_grads`; the program under test passes `accumulate_grads` with a schedule. Marks are the identity.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Accumulate = Callable[..., Callable[[Any], Any]]


def accumulate(
    fn: Callable[..., Any], reduce: Any = None, *, sum_dtype: Any = None, carry: Any = None
) -> Callable[[Any], Any]:
    """The loop: `reduce` has a word for each output of `fn`; without it the first is summed, the rest stacked."""

    def reduce_all(found: list[Any]) -> Any:
        if not isinstance(found[0], tuple):
            return _reduce_output(found, reduce or "sum", sum_dtype)
        words = reduce or ("sum", *["stack"] * (len(found[0]) - 1))
        words = (words,) * len(found[0]) if isinstance(words, str) else words
        return tuple(
            _reduce_output([outputs[position] for outputs in found], word, sum_dtype)
            for position, word in enumerate(words)
        )

    def run(batch: Any) -> Any:
        jitted = jax.jit(fn)
        count = len(jax.tree.leaves(batch)[0])
        slices = [jax.tree.map(lambda leaf: leaf[index], batch) for index in range(count)]  # noqa: B023
        if carry is None:
            return reduce_all([jitted(microbatch) for microbatch in slices])
        last, found = jax.tree.map(jnp.asarray, carry), []
        for microbatch in slices:
            last, outputs = jitted(last, microbatch)
            found.append(outputs)
        return last, reduce_all(found)

    return run


def _reduce_output(outputs: Sequence[Any], word: str, sum_dtype: Any) -> Any:
    return jax.tree.map(lambda *values: _reduce(values, word, sum_dtype), *outputs)


def _reduce(values: Sequence[Any], word: str, sum_dtype: Any) -> Any:
    if word == "stack":
        return jnp.stack(values)
    if word == "last":
        return values[-1]
    if word == "max":
        return functools.reduce(jnp.maximum, values)
    if sum_dtype is not None and jnp.issubdtype(values[0].dtype, jnp.floating):
        values = [value.astype(sum_dtype) for value in values]
    total = functools.reduce(lambda left, right: left + right, values)
    if word == "sum":
        return total
    assert word == "mean", word
    return total / len(values) if jnp.issubdtype(total.dtype, jnp.inexact) else total.astype(jnp.float32) / len(values)


def run_oracle(step: Callable[..., Any], *args: Any) -> Any:
    """The results of a step with the oracle's loop, under one `jit`: by itself each operation would be compiled."""
    return jax.jit(functools.partial(step, accumulate))(*args)


def assert_close(found: Any, expected: Any, *, relative: float = 1e-5, absolute: float = 1e-30) -> None:
    """Compares leaf by leaf: the structure, shapes and dtypes exactly, floats relative to the leaf's largest."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for left, (path, right) in zip(jax.tree.leaves(found), jax.tree_util.tree_leaves_with_path(expected), strict=True):
        _assert_leaf_close(left, right, jax.tree_util.keystr(path), relative, absolute)


def _assert_leaf_close(left: Any, right: Any, where: str, relative: float, absolute: float) -> None:
    assert left.shape == right.shape, where
    assert left.dtype == right.dtype, where
    if jnp.issubdtype(right.dtype, jax.dtypes.prng_key):
        left, right = jax.random.key_data(left), jax.random.key_data(right)
    if not jnp.issubdtype(right.dtype, jnp.floating):
        np.testing.assert_array_equal(np.asarray(left), np.asarray(right), err_msg=where)
        return
    left, right = np.asarray(left, np.float64), np.asarray(right, np.float64)
    largest = float(np.max(np.abs(right[np.isfinite(right)]), initial=0.0))
    np.testing.assert_allclose(left, right, rtol=relative, atol=relative * largest + absolute, err_msg=where)
