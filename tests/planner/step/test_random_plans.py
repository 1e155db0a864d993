"""Random programs under random plans, on virtual devices: the numbers of a plain loop under one jit."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.planner.step.apply_plan import fit_step, write_applied
from jaxquard.planner.step.one_microbatch import trace_microbatch
from jaxquard.planner.step.optimizer import apply_updates
from jaxquard.planner.step.stage_boundaries import analyse_microbatch
from jaxquard.planner.step.train_step import TrainStep
from tests.pipeline.oracle import assert_close
from tests.planner.step.generate import (
    Recipe,
    Wish,
    axes_of,
    fit_plan,
    make_batch,
    make_loss,
    make_optimizer,
    make_params,
    recipes,
    wishes,
)
from tests.planner.step.plans import run_applied


def plain_step(recipe: Recipe, params: Any, batch: Any) -> Any:
    """One step on the whole batch under one jit, without microbatches: the oracle."""
    loss, optimizer = make_loss(recipe), make_optimizer(recipe)

    @jax.jit
    def run(params, batch):
        value, grads = jax.value_and_grad(loss, has_aux=recipe.has_aux)(params, batch)
        value, aux = value if recipe.has_aux else (value, None)
        updates, opt_state = optimizer.update(grads, optimizer.init(params), params)
        state = {"params": apply_updates(params, updates), "opt_state": opt_state, "step": jnp.int32(1)}
        return state, {"loss": value} | ({"aux": aux} if recipe.has_aux else {})

    return run(params, batch)


def check_plan(recipe: Recipe, wish: Wish, *, mesh: Any = None) -> None:
    params, batch = make_params(recipe), make_batch()
    step = TrainStep(
        loss=make_loss(recipe),
        optimizer=make_optimizer(recipe),
        num_microbatches=wish.num_microbatches,
        has_aux=recipe.has_aux,
        loss_reduction=recipe.loss_reduction,
    )
    args = step.init(params), batch
    one = trace_microbatch(fit_step(step, num_microbatches=wish.num_microbatches, recompute=wish.recompute), args)
    analysis = analyse_microbatch(one, axes=axes_of(wish.axes))
    applied = write_applied(one, StepPrograms(analysis), fit_plan(wish, one, analysis))
    expected = jax.tree.map(np.asarray, plain_step(recipe, params, batch))
    assert_close(run_applied(applied, args, mesh=mesh), expected)


@settings(max_examples=2)
@given(recipe=recipes(), wish=wishes())
def test_random_plans_have_the_numbers_of_one_jit(recipe, wish):
    check_plan(recipe, wish)


@pytest.mark.slow
@settings(max_examples=40)
@given(recipe=recipes(), wish=wishes())
def test_many_random_plans_have_the_numbers_of_one_jit(recipe, wish):
    check_plan(recipe, wish)
