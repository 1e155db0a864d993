"""The training step of a cell: a model of the zoo with the cell's dims."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxquard.errors import JaxquardError
from jaxquard.evaluate.cfp.cells.cell import CellSpec
from jaxquard.models import zoo

AXES = {1: ("devices",), 2: ("outer", "inner")}


def make_step(spec: CellSpec) -> tuple[Callable[..., Any], tuple[Any, Any]]:
    """The step, and its state and batch as shapes.

    Raises:
        JaxquardError: if there is no such model.
    """
    if spec.model not in zoo.MODELS:
        raise JaxquardError(f"no model is called {spec.model!r}. Use one of: {', '.join(zoo.MODELS)}.")
    found = zoo.find_model(spec.size or f"{spec.model}-tiny")
    changes: dict[str, Any] = {
        "num_layers": spec.num_layers,
        "model_dim": spec.model_dim,
        "sequence_length": spec.sequence_length,
        "vocab_size": spec.vocab_size,
        "dtype": jnp.dtype(spec.dtype),
        "dropout_rate": spec.dropout_rate,
    }
    if spec.model == "llama" and spec.size is None:
        # As LLAMA-2 has it: 8/3 of the width, here to a multiple of 64.
        changes["mlp_dim"] = max(64, 8 * spec.model_dim // 3 // 64 * 64)
    config = dataclasses.replace(found.config, **changes)
    made = zoo.training_step(
        found.module, config, batch_size=spec.batch_size, optimizer=spec.optimizer, only_shapes=True
    )
    return made.train_step, (jax.eval_shape(made.init_state, jax.random.key(0)), made.batch)


def cell_axes(spec: CellSpec) -> dict[str, int]:
    """The mesh axes of a cell."""
    return dict(zip(AXES[len(spec.mesh)], spec.mesh, strict=True))


def num_tokens(spec: CellSpec) -> int:
    """Returns the tokens of one step."""
    return spec.batch_size * spec.sequence_length
