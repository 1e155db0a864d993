"""Runs a public model as a pipeline, its layers marked from outside, beside a plain loop on one device.

A control run, without jaxquard, shows what is rounding: the same loop with the rows of every microbatch in reverse
order. `pytest -rP` shows both errors of every model.
"""

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxquard as jq
from tests.pipeline.layers.test_mark_layers import step_of
from tests.pipeline.oracle import assert_close
from tests.pipeline.planning import plan, with_schedule

MICROBATCHES = 3


def find_models(module: str, package: str) -> Any:
    """Returns a module of tests, for the models in it; a test is skipped where their package is not installed."""
    pytest.importorskip(package)
    return importlib.import_module(f"tests.field.{module}")


def check_model(
    loss: Callable[[Any, Any], Any],
    params: Any,
    batch: Any,
    where: str | Sequence[str],
    *,
    num_stages: int,
    rows_dim: int = 1,
    **tolerance: float,
) -> None:
    """One step of the marked loss under 1F1B and ZB-H1 has the numbers of the plain loss in a loop.

    Args:
        loss: of parameters and one microbatch.
        params: its parameters, on one device.
        batch: leaves with the microbatches as their first dim.
        where: the layers after which stages end.
        num_stages: the stages that they make.
        rows_dim: of the leaves of the batch.
        **tolerance: of `assert_close`.
    """
    plain_step = make_plain_step(loss)
    expected = plain_step(params, batch)
    reversed_rows = jax.tree.map(lambda leaf: jnp.flip(leaf, rows_dim), batch)
    control = largest_error(plain_step(params, reversed_rows), expected, **tolerance)
    marked = jq.mark_layers(loss, where, num_stages=num_stages if "*" in str(where) else None)
    for schedule in (jq.schedules.OneFOneB(num_stages), jq.schedules.ZeroBubbleH1(num_stages)):
        planned = plan(with_schedule(step_of(marked), schedule), params, batch, num_actors=num_stages)
        found = planned.run(params, batch)
        print(f"{schedule}: error {largest_error(found, expected, **tolerance):.1e}, control {control:.1e}")  # noqa: T201
        assert_close(found, expected, **tolerance)
        num_params = len(jax.tree.leaves(params))
        held = [{item.arg for item in actor.inputs if item.arg < num_params} for actor in planned.program.actors]
        assert all(len(actor) < num_params for actor in held), "no actor has all parameters"


def make_plain_step(loss: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns the step of `step_of` as a plain loop; its gradients compile once."""
    value_and_grad = jax.jit(jax.value_and_grad(loss))

    def step(params: Any, batch: Any) -> Any:
        found = [value_and_grad(params, jax.tree.map(lambda leaf: leaf[index], batch)) for index in range(MICROBATCHES)]  # noqa: B023
        total = jax.tree.map(lambda *grads: functools.reduce(jnp.add, grads), *(grads for _, grads in found))
        params = jax.tree.map(lambda param, grad: param - 0.1 * grad, params, total)
        return params, jnp.stack([value for value, _ in found])

    return step


def largest_error(found: Any, expected: Any, *, relative: float = 1e-5, absolute: float = 1e-30) -> float:
    """Returns the largest difference of two pytrees, relative to the largest element of its leaf.

    Where `assert_close` allows a difference of `absolute`, that counts as one of `relative`.
    """
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return max(float(np.max(np.abs(a - b)) / (np.max(np.abs(b)) + absolute / relative)) for a, b in pairs)


def random_tokens(vocab: int, *, length: int = 6, size: int = 2) -> Any:
    """Returns the tokens of a batch."""
    return jax.random.randint(jax.random.key(1), (MICROBATCHES, size, length), 1, vocab)


def next_token_loss(logits: Any, tokens: Any) -> Any:
    """Returns the mean cross entropy of each token, given those before."""
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), tokens[:, 1:, None], axis=-1)
    return -jnp.mean(picked)
