"""Laws of single operations: sound where it matters, and strong where losses need it."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxquard.ir.rows import SAME, Kind, RowReader, law_text, rows

WEIGHTS = jax.ShapeDtypeStruct((4, 4), jnp.float32)


def read(fn, *, num_parts=2, row_count=8, draws_rows=False, key=None):
    """The law of what a function of weights and rows returns."""
    keys = () if key is None else (key,)
    traces = [
        jax.make_jaxpr(fn)(WEIGHTS, jax.ShapeDtypeStruct((count, 4), jnp.float32), *keys)
        for count in (row_count, row_count // num_parts)
    ]
    reader = RowReader(num_parts=num_parts, draws_rows=draws_rows)
    (law,) = reader.relate(*traces, [SAME, rows(0), *[SAME] * len(keys)]).outputs
    return law


SPLIT = {
    "a sum": (lambda w, x: x.sum(), "sum"),
    "a mean": (lambda w, x: x.mean(), "sum x 0.5"),
    "a penalty": (lambda w, x: (w**2).sum(), "same"),
    "a mean and a penalty": (lambda w, x: x.mean() + (w**2).sum(), "sum x 0.5"),
    "rows": (lambda w, x: jnp.tanh(x @ w), "rows along 0"),
    "columns": (lambda w, x: jnp.tanh(x @ w).T, "rows along 1"),
    "rows backwards": (lambda w, x: x[::-1], "rows along 0 in another order"),
    "rows backwards twice": (lambda w, x: x[::-1][::-1], "rows along 0"),
    "two blocks of rows": (lambda w, x: jnp.concatenate([x, x]), "rows along 0 in 2 blocks"),
    "every other row": (lambda w, x: x[::2], "rows along 0"),
    "a product over rows": (lambda w, x: x.T @ jnp.tanh(x), "sum"),
    "a histogram": (lambda w, x: jnp.zeros(4).at[(x[:, 0] > 0).astype(int)].add(1), "sum"),
    "the largest": (lambda w, x: x.max(), "max"),
    "any": (lambda w, x: (x > 0).any(), "max"),
    "the number of rows": (lambda w, x: jnp.float32(len(x)), "same x 2"),
    "ones for all rows": (lambda w, x: jnp.ones(len(x)), "rows along 0"),
    "a carry that adds": (lambda w, x: lax.scan(lambda c, v: (c + v, None), jnp.zeros(4), x)[0], "sum"),
    "rows by their positions": (lambda w, x: x[jnp.arange(len(x)), 1], "rows along 0"),
    "a sort of each row": (lambda w, x: jnp.sort(x, -1), "rows along 0"),
    "a transform of each row": (lambda w, x: jnp.fft.fft(x).real, "rows along 0"),
    "a table read by zeros for all rows": (lambda w, x: w[jnp.zeros(len(x), int)], "rows along 0"),
    "a row for all rows": (lambda w, x: jnp.tile(w[:1], (len(x), 1)), "rows along 0"),
    "zeros": (lambda w, x: 0 * jnp.ones((3, 3)), "zeros"),
}
MIXED = {
    "positions": (lambda w, x: x * jnp.arange(len(x))[:, None], "position of a row"),
    "a sum that is squared": (lambda w, x: x.sum() ** 2, "sum over rows"),
    "a sum beside rows": (lambda w, x: x + x.sum(0), "sum over rows"),
    "pairs": (lambda w, x: x @ x.T, "other rows"),
    "rows against rows backwards": (lambda w, x: x * x[::-1], "another order"),
    "a sum and what rows do not change": (lambda w, x: x.sum() + w.sum(), "would add again"),
    "a sort of rows": (lambda w, x: jnp.sort(x, 0), "along the rows"),
    "a cumulated sum": (lambda w, x: jnp.cumsum(x, 0), "along the rows|rows"),
    "a roll": (lambda w, x: jnp.roll(x, 1, 0), "by their position"),
    "one key": (lambda w, x: x * jax.random.normal(jax.random.key(0), x.shape), "from one key"),
    "a carry that decays": (lambda w, x: lax.scan(lambda c, v: (c / 2 + v, None), jnp.zeros(4), x)[0], "rows before"),
    "a carry that changes its sign": (lambda w, x: lax.scan(lambda c, v: (v - c, None), jnp.zeros(4), x)[0], "row"),
    "a carry that turns": (lambda w, x: lax.scan(lambda c, v: (c.T + v, None), 0 * w, x)[0], "rows before"),
    "a carry with a hole": (
        lambda w, x: lax.scan(lambda c, v: (c.at[0].set(0) + v, None), jnp.zeros(4), x)[0],
        "rows before",
    ),
    "labels of other rows": (
        lambda w, x: x[jnp.arange(len(x))[::-1], (x[:, 0] > 0).astype(int)],
        "stay in a microbatch",
    ),
    "a branch of the batch": (lambda w, x: lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x), "sum over rows"),
    "a loop until all agree": (
        lambda w, x: lax.while_loop(lambda c: c.sum() < 100, lambda c: c + 1, jnp.abs(x)),
        "sum over rows|rows",
    ),
    "one key for a distribution": (lambda w, x: x * jax.random.gamma(jax.random.key(0), 2.0, x.shape), "from one key"),
    "an index that counts rows": (lambda w, x: w[jnp.array([len(x)])], "number of rows"),
    "a sum that is filled with ones": (
        lambda w, x: x.sum(0).at[jnp.array([7, 1])].get(mode="fill", fill_value=1.0),
        "fills a sum over rows",
    ),
    "zeros that are filled with ones": (
        lambda w, x: x.sum(0)[:2] + (0 * w[0]).at[jnp.array([7, 1])].get(mode="fill", fill_value=1.0),
        "fills a sum over rows",
    ),
    "positions and labels in another dim": (
        lambda w, x: lax.gather(
            x,
            lax.concatenate([jnp.arange(len(x))[None, :, None], (x[:, 0] > 0).astype(int)[None, :, None]], 0),
            lax.GatherDimensionNumbers(offset_dims=(2,), collapsed_slice_dims=(0,), start_index_map=(0,)),
            (1, 4),
        ),
        "position|indices",
    ),
    "small integers that wrap": (
        lambda w, x: x.astype(jnp.int8).sum(dtype=jnp.int8).astype(jnp.float32),
        "wrap around",
    ),
    "unsigned numbers below zero": (lambda w, x: -(x > 0).astype(jnp.uint32).sum(), "sum over rows"),
    "a callback": (
        lambda w, x: jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
        "runs pure_callback, which cannot be read",
    ),
}


@pytest.mark.parametrize("name", SPLIT)
def test_laws_that_are_known(name):
    fn, expected = SPLIT[name]
    assert law_text(read(fn)) == expected


@pytest.mark.parametrize("name", MIXED)
def test_laws_that_are_not_known(name):
    fn, reason = MIXED[name]
    law = read(fn)
    assert law.kind is Kind.MIXED
    assert any(part in law.cause.reason for part in reason.split("|")), law.cause.reason


@pytest.mark.parametrize("name", ["a mean", "rows", "a product over rows", "ones for all rows"])
def test_parts_of_one_row(name):
    fn, _ = SPLIT[name]
    assert read(fn, num_parts=8).kind is read(fn).kind


def test_numbers_that_each_part_draws_are_rows_of_its_own():
    key = jax.eval_shape(jax.random.key, 0)
    assert law_text(read(lambda w, x, k: jax.random.normal(k, x.shape), draws_rows=True, key=key)) == "rows along 0"
    assert read(lambda w, x, k: jax.random.normal(k, x.shape), key=key).kind is Kind.MIXED


def test_code_that_differs_is_not_related():
    law = read(lambda w, x: jnp.tanh(x) if len(x) > 4 else jnp.sin(x))
    assert law.cause.reason == "runs other operations on fewer rows"
