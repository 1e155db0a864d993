"""Runs a public model as a pipeline, its layers marked from outside, beside a plain loop on one device."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import jaxquard as jq
from tests.pipeline.layers.test_mark_layers import step_of
from tests.pipeline.oracle import assert_close, run_oracle
from tests.pipeline.planning import plan, with_schedule

MICROBATCHES = 3


def check_model(
    loss: Callable[[Any, Any], Any],
    params: Any,
    batch: Any,
    where: str | Sequence[str],
    *,
    num_stages: int,
    **tolerance: float,
) -> None:
    """One step of the marked loss under 1F1B and ZB-H1 has the numbers of the plain loss in a loop.

    Args:
        loss: of parameters and one microbatch.
        params: its parameters, on one device.
        batch: leaves with the microbatches as their first dim.
        where: the layers after which stages end.
        num_stages: the stages that they make.
        **tolerance: of `assert_close`.
    """
    expected = run_oracle(step_of(loss), params, batch)
    marked = jq.mark_layers(loss, where, num_stages=num_stages if "*" in str(where) else None)
    for schedule in (jq.schedules.OneFOneB(num_stages), jq.schedules.ZeroBubbleH1(num_stages)):
        planned = plan(with_schedule(step_of(marked), schedule), params, batch, num_actors=num_stages)
        assert_close(planned.run(params, batch), expected, **tolerance)
        num_params = len(jax.tree.leaves(params))
        held = [{item.arg for item in actor.inputs if item.arg < num_params} for actor in planned.program.actors]
        assert all(len(actor) < num_params for actor in held), "no actor has all parameters"


def random_tokens(vocab: int, *, length: int = 6, size: int = 2) -> Any:
    """Returns the tokens of a batch."""
    return jax.random.randint(jax.random.key(1), (MICROBATCHES, size, length), 1, vocab)


def next_token_loss(logits: Any, tokens: Any) -> Any:
    """Returns the mean cross entropy of each token, given those before."""
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), tokens[:, 1:, None], axis=-1)
    return -jnp.mean(picked)
