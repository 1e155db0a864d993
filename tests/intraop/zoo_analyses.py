"""Steps of the small models, taken apart; shared by the tests of this folder."""

import dataclasses
import functools

import jax

from jaxquard.intraop.segments.analysis import Analysis, analyse_step
from jaxquard.intraop.step.traced_step import trace_step
from jaxquard.models.zoo import find_model, training_step


@functools.cache
def analyse_model(
    name: str, *, batch_size: int = 8, axes: tuple[tuple[str, int], ...] = (("x", 8),), num_layers: int | None = None
) -> Analysis:
    """The analysis of a model's training step."""
    model = find_model(name)
    config = model.config if num_layers is None else dataclasses.replace(model.config, num_layers=num_layers)
    step = training_step(model.module, config, batch_size=batch_size)
    state = jax.eval_shape(step.init_state, jax.random.key(0))
    return analyse_step(trace_step(step.train_step, (state, step.batch)), axes=dict(axes))
