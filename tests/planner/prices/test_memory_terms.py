"""Bytes of segments: against cases computed by hand, and against the state of whole steps."""

import math

import jax.numpy as jnp
import pytest

from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.ir.jaxpr_tools import size_bytes
from jaxquard.planner.record.plan import Recompute
from tests.planner.prices.small_steps import BATCH, DIM, HIDDEN, WEIGHT_BYTES, priced_mlp, priced_model

HIDDEN_BYTES, RESULT_BYTES = 4 * BATCH * HIDDEN, 4 * BATCH * DIM


def mlp_cost(*names: str, storage=Storage.AS_USED, recompute=Recompute.NONE, **options):
    costs = priced_mlp(**options).costs(storage=storage, recompute=recompute)
    ((strategies,), (segment,)) = costs.strategies, costs.segments
    return segment.strategies[strategies.index(tuple((name,) for name in names))]


@pytest.mark.parametrize(
    ("names", "shards", "hidden_shards", "result_shards"),
    [
        (("rows", "rows"), (1, 1), 8, 8),
        (("columns", "contracted"), (8, 8), 8, 1),
        (("rows", "columns"), (1, 8), 8, 8),
        (("contracted", "columns"), (8, 8), 1, 8),
    ],
)
def test_bytes_of_two_layers_by_hand(names, shards, hidden_shards, result_shards):
    cost = mlp_cost(*names)
    state = sum(WEIGHT_BYTES // count for count in shards)
    assert (cost.weight_bytes, cost.gradient_bytes, cost.optimizer_bytes) == (state, state, state)
    # The backward takes tanh, from which it makes its derivative, and twice the difference to the target; x is data.
    assert cost.activation_bytes == HIDDEN_BYTES // hidden_shards + RESULT_BYTES // result_shards


def test_casts_of_weights_are_there_once_for_all_microbatches():
    cost = mlp_cost("rows", "rows", dtype=jnp.bfloat16)
    assert cost.weight_bytes == 2 * WEIGHT_BYTES + 2 * WEIGHT_BYTES // 2
    assert cost.gradient_bytes == 2 * WEIGHT_BYTES


@pytest.mark.parametrize(
    ("storage", "weights", "optimizer"),
    [
        (Storage.AS_USED, 2 * WEIGHT_BYTES, 2 * WEIGHT_BYTES),
        (Storage.ZERO_1, 2 * WEIGHT_BYTES, 2 * WEIGHT_BYTES // 8),
        (Storage.ZERO_2, 2 * WEIGHT_BYTES, 2 * WEIGHT_BYTES // 8),
        # Gathered in front of the loop, beside the shards.
        (Storage.ZERO_3, 2 * WEIGHT_BYTES + 2 * WEIGHT_BYTES // 8, 2 * WEIGHT_BYTES // 8),
    ],
)
def test_zero_shards_state_between_steps(storage, weights, optimizer):
    cost = mlp_cost("rows", "rows", storage=storage)
    assert (cost.weight_bytes, cost.optimizer_bytes) == (weights, optimizer)
    assert cost.gradient_bytes == 2 * WEIGHT_BYTES


def test_zero_changes_nothing_where_weights_are_sharded_already():
    costs = [mlp_cost("columns", "contracted", storage=storage) for storage in Storage]
    assert len(set(costs)) == 1


def test_recomputation_keeps_what_enters_and_what_weights_make():
    selective = mlp_cost("rows", "rows", recompute=Recompute.SELECTIVE)
    assert selective.activation_bytes == (HIDDEN_BYTES + RESULT_BYTES) // 8
    full = mlp_cost("rows", "rows", recompute=Recompute.FULL)
    # Only data enters the first segment.
    assert full.activation_bytes == 0
    assert full.working_bytes > mlp_cost("rows", "rows").working_bytes


def test_full_recomputation_keeps_the_inputs_of_layers():
    priced = priced_model("gpt-tiny")
    costs = priced.costs(recompute=Recompute.FULL)
    batch, length, dim = 8, 32, 64
    for segment, names in list(zip(costs.segments, costs.strategies, strict=True))[1:]:
        rows = [place for place, strategy in enumerate(names) if set(strategy) == {("rows",)}]
        assert [segment.strategies[place].activation_bytes for place in rows] == [4 * batch * length * dim // 8]


@pytest.mark.thin(3)
@pytest.mark.parametrize("storage", list(Storage))
@pytest.mark.parametrize("name", ["data parallel", "megatron", "zero 3"])
@pytest.mark.parametrize(
    "axes", [pytest.param((("x", 8),), marks=pytest.mark.slow), (("data", 2), ("model", 4))], ids=["line", "grid"]
)
def test_segments_hold_all_state_and_nothing_twice(axes, name, storage):
    priced = priced_model("llama-tiny", axes, num_layers=2)
    costs = priced.costs(storage=storage)
    places = costs.places(priced.recipes[name])
    assert places is not None
    held = [segment.strategies[place] for segment, place in zip(costs.segments, places, strict=True)]
    step = priced.analysis.step
    program = priced.prices.programs.write_step(priced.recipes[name], storage=storage)
    sizes = priced.analysis.axes
    weights = optimizer = 0
    for var, spec, result in zip(step.jaxpr.invars, program.in_specs, step.result_of_input, strict=True):
        if result is not None:
            axes_of = [axis for entry in spec for axis in ((entry,) if isinstance(entry, str) else entry or ())]
            weights += size_bytes(var.aval) // math.prod(sizes[axis] for axis in axes_of)
    optimizer = sum(cost.optimizer_bytes for cost in held)
    stored = sum(cost.weight_bytes for cost in held) + optimizer
    # What is gathered is beside what is stored.
    gathered = sum(cost.weight_bytes for cost in held) if storage is Storage.ZERO_3 else 0
    assert stored == weights or (gathered and weights < stored <= weights + gathered)
