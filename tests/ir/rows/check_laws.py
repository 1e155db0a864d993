"""The oracle of laws: evaluates both jaxprs, equation by equation, and holds each value against its law."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxquard.ir.inline_calls import inline_calls
from jaxquard.ir.jaxpr_tools import evaluate, make_jaxpr, variables, with_constants_as_inputs
from jaxquard.ir.rows import SAME, Kind, Law, RowReader, of_values, rows


def check_laws(
    fn: Callable[..., Any], params: Any, batch: Any, num_parts: int, *, tolerance: float = 2e-4
) -> dict[Kind, int]:
    """Checks the law of every value that a function computes, and returns how many have which.

    Args:
        fn: of the parameters, which are the same for all parts, and of a batch, whose leaves have the rows first.
    """
    count = len(jax.tree.leaves(batch)[0]) // num_parts
    parts = [
        jax.tree.map(lambda leaf, at=at: leaf[at : at + count], batch) for at in range(0, count * num_parts, count)
    ]
    (whole, consts), (part, others) = (_opened(fn, params, one) for one in (batch, parts[0]))
    states = [
        *[SAME] * len(jax.tree.leaves(params)),
        *[rows(0)] * len(jax.tree.leaves(batch)),
        *map(of_values, consts, others),
    ]
    found = RowReader(num_parts=num_parts).relate(whole, part, states, opens=False)
    values = _evaluate(whole, [*jax.tree.leaves((params, batch)), *consts])
    of_parts = [_evaluate(part, [*jax.tree.leaves((params, one)), *others]) for one in parts]
    counts: dict[Kind, int] = {}
    for equation in whole.eqns:
        for var in equation.outvars:
            law = found.law_of(var)
            counts[law.kind] = counts.get(law.kind, 0) + 1
            twin = found.twins.get(var)
            if law.kind is Kind.MIXED or not all(twin in one for one in of_parts):
                continue
            value, split = values[var], [one[twin] for one in of_parts]
            message = f"{law} of {equation}"
            np.testing.assert_allclose(value, _join(law, split), rtol=tolerance, atol=tolerance, err_msg=message)
    return counts


def _opened(fn: Callable[..., Any], params: Any, batch: Any) -> Any:
    closed = jax.make_jaxpr(fn)(params, batch)
    return inline_calls(*with_constants_as_inputs(closed), ignores_shardings=True)


def _evaluate(jaxpr: Any, inputs: list[Any]) -> dict[Any, np.ndarray]:
    values: dict[Any, Any] = dict(zip(jaxpr.invars, inputs, strict=True))
    for equation in jaxpr.eqns:
        used = list(dict.fromkeys(variables(equation.invars)))
        run = evaluate(make_jaxpr(used, [equation], equation.outvars))
        values.update(zip(equation.outvars, run(*(values[var] for var in used)), strict=True))
    return {var: _numbers(value) for var, value in values.items()}


def _numbers(value: Any) -> np.ndarray:
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value).astype(np.float64)


def _join(law: Law, parts: list[np.ndarray]) -> np.ndarray:
    """Returns what the whole is by its law."""
    if law.kind is Kind.SUM:
        return law.scale * np.sum(parts, axis=0)
    if law.kind is Kind.MAX:
        return np.max(parts, axis=0)
    if law.kind is Kind.ZERO:
        return np.zeros(())
    if law.kind is Kind.SAME:
        for part in parts:
            np.testing.assert_allclose(part, parts[0], rtol=2e-4, atol=2e-4, err_msg=str(law))
        return law.scale * parts[0]
    assert law.kind is Kind.ROWS, law
    order = law.order or range(len(parts))
    outer = law.outer or 1
    blocks = []
    for part in (parts[number] for number in order):
        shape = part.shape
        blocks.append(part.reshape(*shape[: law.dim], outer, 1, shape[law.dim] // outer, *shape[law.dim + 1 :]))
    joined = np.concatenate(blocks, axis=law.dim + 1)
    shape = parts[0].shape
    return law.scale * joined.reshape(*shape[: law.dim], len(parts) * shape[law.dim], *shape[law.dim + 1 :])
