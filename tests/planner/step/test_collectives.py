"""The collectives of a step under a plan, counted in compiled tasks: what prices count once, runs once."""

import math
import re
from collections import Counter

import jax
import numpy as np
import optax
import pytest

import jaxquard as jq
from jaxquard.ir.program.instructions import Run
from jaxquard.runtime.program.compile_calls import call_types, make_function, sharding_on
from tests.planner.small_losses import mlp_args, mlp_loss

_COLLECTIVE = re.compile(r"= (.+?) (all-gather|all-reduce|reduce-scatter)(?:-start)?\(")
_SHAPE = re.compile(r"f32\[([\d,]*)\]")


def count_collectives(run):
    """The arrays that each kind of collective moves, in front of the loop, in it and after it, by their elements."""
    program = run.distributed.lower(*run._problem.args).program
    axes = run.plan.axes
    devices = np.asarray(jax.devices()[: math.prod(axes.values())]).reshape(tuple(axes.values()))
    mesh = jax.sharding.Mesh(devices, tuple(axes))
    found = {"before": Counter(), "loop": Counter(), "after": Counter()}
    texts = {}
    for actor in program.actors:
        for one in actor.instructions:
            if not isinstance(one, Run):
                continue
            if one.call not in texts:
                texts[one.call] = compile_text(program.calls[one.call], mesh)
            place = one.task.partition(".")[0]
            for types, kind in _COLLECTIVE.findall(texts[one.call]):
                sizes = [math.prod(map(int, filter(None, dims.split(",")))) for dims in _SHAPE.findall(types)]
                found[place if place in found else "loop"].update((kind, size) for size in sizes)
    return found


def compile_text(call, mesh):
    jitted = jax.jit(
        make_function(call, adds_witness=False),
        in_shardings=tuple(sharding_on(mesh, type_) for type_ in call.inputs),
        out_shardings=[sharding_on(mesh, type_) for type_ in call.outputs],
    )
    return jitted.lower(*call_types(call, mesh)).compile().as_text()


def plan_run(fix, *, devices=4, **shape):
    args = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), mlp_args(num_layers=2, **shape))
    fix = {"microbatches": 4, "recompute": "none", **fix}
    return jq.parallelize(mlp_loss, optax.adam(0.1), args, devices=devices, fix=fix, num_measured=0)


TENSOR = {"stages": 1, "data": 2, "model": 2, "layers.*.up": "rows/columns", "layers.*.down": "rows/contracted"}
# On each device: weights of 16 x 32 and 16 x 8, of which the model axis has a half; rows of 4 x 16.
WEIGHTS, ROWS = (16 * 16, 16 * 4, 16 * 8), 4 * 16


@pytest.mark.thin(2)
@pytest.mark.parametrize("storage", ["as used", "zero 1", "zero 3"])
def test_tensor_parallelism_moves_weights_and_gradients_once_a_step(storage):
    """Activations alone move with every microbatch, although the targets are sharded over the model axis, too."""
    with plan_run({**TENSOR, "storage": storage}, rows=32) as run:
        found = count_collectives(run)
    in_loop = {size for _, size in found["loop"]}
    assert ROWS in in_loop
    assert max(in_loop) <= ROWS
    gathers = {
        place: sum(n for (kind, _), n in counts.items() if kind == "all-gather") for place, counts in found.items()
    }
    assert gathers["before"] == (5 if storage == "zero 3" else 0)
    assert gathers["after"] == (5 if storage == "zero 1" else 0)
    # The shards of a reduce-scatter are halves.
    sums = [
        size * (2 if kind == "reduce-scatter" else 1)
        for (kind, size), count in found["after"].items()
        for _ in range(count)
        if kind != "all-gather" and size > 1
    ]
    assert len(sums) == 5
    assert set(sums) <= set(WEIGHTS)
    assert any(kind == "reduce-scatter" for kind, _ in found["after"]) is (storage != "as used")


@pytest.mark.parametrize("storage", ["zero 1", "zero 3"])
def test_a_pipeline_gathers_and_scatters_once_a_step(storage):
    with plan_run({"stages": 2, "data": 2, "schedule": "1f1b", "storage": storage}, rows=32) as run:
        found = count_collectives(run)
    assert not any(size > 1 for _, size in found["loop"])
    place = "before" if storage == "zero 3" else "after"
    gathered = sum(count for (kind, _), count in found[place].items() if kind == "all-gather")
    scattered = sum(count for (kind, _), count in found["after"].items() if kind == "reduce-scatter")
    assert (gathered, scattered) == (5, 5)


def test_zero_2_scatters_gradients_with_every_microbatch():
    """So what adds up over microbatches is a shard; a price counts as many bytes less, and as many sums more."""
    fix = {"stages": 2, "data": 2, "schedule": "1f1b"}
    with plan_run({**fix, "storage": "zero 2"}, rows=32) as run:
        found, plan = count_collectives(run), run.plan
    scattered = {
        place: sum(n for (kind, _), n in counts.items() if kind == "reduce-scatter") for place, counts in found.items()
    }
    assert scattered == {"before": 0, "loop": 4 * 5, "after": 0}
    whole = plan_run({**fix, "storage": "zero 1"}, rows=32).plan
    assert plan.memory.optimizer_bytes == whole.memory.optimizer_bytes
    assert 2 * plan.memory.gradient_bytes == whole.memory.gradient_bytes
    assert plan.times.collective_s > whole.times.collective_s
    assert plan.times.gradient_s < whole.times.gradient_s


@pytest.mark.slow
def test_2d_products_sum_weight_gradients_over_data_once_a_step():
    fix = {"actors": 1, "data": 2, "rows": 2, "columns": 2, "microbatches": 2, "layers.*": "2d"}
    with plan_run(fix, devices=8, rows=32) as run:
        found = count_collectives(run)
    assert not any(kind == "all-reduce" and size > 1 for kind, size in found["loop"])
    # Quarters of 16 x 32.
    assert found["after"]["all-reduce", 16 * 8] >= 4
