"""Training steps that the tests take apart: the models of the zoo, and what else users write."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from jaxquard.intraop.segments.analysis import Analysis, analyse_step
from jaxquard.intraop.segments.strategies import block_choices
from jaxquard.intraop.step.traced_step import trace_step
from jaxquard.models.training import TrainingStep, training_step
from jaxquard.models.zoo import find_model

ZOO = ("gpt-tiny", "bert-tiny", "llama-tiny", "moe-tiny")
LINE = {"x": 8}

BATCH, LENGTH, DIM, HEADS = 8, 16, 64, 8
HEAD_DIM = DIM // HEADS


def zoo_step(name: str, *, remat: bool = False, optimizer: str = "sgd", batch_size: int = 8, **changes: Any):
    """A step of a model, and its arguments."""
    made = _training_step(name, remat=remat, optimizer=optimizer, batch_size=batch_size, **changes)
    return made.train_step, (made.init_state(jax.random.key(0)), made.batch)


def zoo_types(name: str, **options: Any):
    """The same with shapes in place of the state's arrays, for the analysis alone."""
    made = _training_step(name, **options)
    return made.train_step, (jax.eval_shape(made.init_state, jax.random.key(0)), made.batch)


def _training_step(
    name: str, *, remat: bool = False, optimizer: str = "sgd", batch_size: int = 8, **changes: Any
) -> TrainingStep:
    model = find_model(name)
    module: Any = model.module

    class Rematted:
        def __getattr__(self, attribute: str) -> Any:
            found = getattr(module, attribute)
            return partial(found, remat=True) if remat and attribute == "loss" else found

    rematted: Any = Rematted()
    return training_step(
        rematted, replace(model.config, **changes), optimizer=optimizer, batch_size=batch_size, learning_rate=0.1
    )


def analyse(step: Callable[..., Any], args: Any, axes: dict[str, int] | None = None) -> Analysis:
    return analyse_step(trace_step(step, args), axes=axes or LINE)


def mesh_of(**axes: int) -> Mesh:
    types = (AxisType.Auto,) * len(axes)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=types)


def random_assignment(analysis: Analysis, seed: int, batch_axis: str | None = None) -> dict[int, tuple[str, ...]]:
    """A choice for every block."""
    draw = random.Random(seed)
    return {
        block.number: draw.choice(block_choices(block, analysis.axes, batch_axis=batch_axis))
        for block in analysis.blocks
    }


def names_of(analysis: Analysis) -> list[tuple[str, ...]]:
    return [block.names for block in analysis.blocks]


def sgd(loss: Callable[..., jax.Array], rate: float = 0.1) -> Callable[..., Any]:
    """The plainest step there is."""

    def step(params, batch):
        value, grads = jax.value_and_grad(loss)(params, batch)
        return jax.tree.map(lambda param, grad: param - rate * grad.astype(param.dtype), params, grads), value

    return step


def weights(**shapes: tuple[int, ...]) -> dict[str, Any]:
    """Random arrays, so large that values keep their size through a product."""
    return {
        name: inputs(*shape, seed=10 + number) * np.float32(shape[-2] ** -0.5 if len(shape) > 1 else 0.1)
        for number, (name, shape) in enumerate(shapes.items())
    }


def inputs(*shape: int, seed: int = 2) -> Any:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
