"""Rows that are sorted by expert are sharded, with the numbers of one device."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxquard.intraop.plan.search_sharding import search_sharding
from jaxquard.intraop.segments.strategies import block_choices
from jaxquard.intraop.shardings.baselines import baselines
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.pricing import RooflinePricer
from jaxquard.pricing.program.lower_program import lower_program
from tests.intraop.dropless_step import dropless_step
from tests.intraop.same_numbers import check_same, check_step
from tests.intraop.steps import analyse, inputs, mesh_of, sgd, weights
from tests.slow_but_for import slow_but_for

ROWS, DIM, HIDDEN, EXPERTS = 80, 16, 32, 4


def experts_step(sizes, *, remat=False):
    """Sorted rows through the two products of experts; the sizes of their runs are data."""

    def apply(params, rows, sizes):
        inner = jnp.tanh(lax.ragged_dot(rows, params["up"], sizes))
        return lax.ragged_dot(inner, params["down"], sizes)

    def loss(params, batch):
        run = jax.checkpoint(apply) if remat else apply
        return jnp.mean((run(params, batch["rows"] @ params["first"], batch["sizes"]) + 1) ** 2)

    params = weights(first=(DIM, DIM), up=(EXPERTS, DIM, HIDDEN), down=(EXPERTS, HIDDEN, DIM))
    return sgd(loss), (params, {"rows": inputs(ROWS, DIM), "sizes": np.array(sizes, np.int32)})


def all_assignments(analysis, batch_axis=None):
    """Every choice of the products of experts; the first product is sharded by rows."""
    axes = analysis.axes
    first, *others = (block_choices(block, axes, batch_axis=batch_axis) for block in analysis.blocks)
    for names in itertools.product(first[:1], *others):
        yield dict(enumerate(names))


# Even runs, uneven ones with an empty expert, one expert alone, and rows that no expert has.
SIZES = {"even": (20, 20, 20, 20), "uneven": (4, 0, 62, 14), "one": (0, 80, 0, 0), "rows left": (5, 20, 7, 9)}


def test_every_choice_has_the_numbers_of_one_device():
    step, args = experts_step(SIZES["uneven"])
    analysis = analyse(step, args, {"x": 8})
    every = list(all_assignments(analysis))
    assert len(every) == 16
    # The same choice of both products, each of the four.
    check_step(step, args, analysis, every[::5], mesh=mesh_of(x=8))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("axes", [{"x": 8}, {"a": 2, "b": 4}], ids=str)
def test_all_choices_have_the_numbers_of_one_device(sizes, remat, axes):
    step, args = experts_step(sizes, remat=remat)
    analysis = analyse(step, args, axes)
    every = list(all_assignments(analysis, batch_axis="a" if "a" in axes else None))
    assert len(every) == 16
    check_step(step, args, analysis, every, mesh=mesh_of(**axes))


def test_rows_beside_each_other_choice():
    step, args = experts_step(SIZES["uneven"])
    analysis = analyse(step, args, {"a": 2, "b": 4})
    names = [("rows", name) for name in ("rows", "columns", "contracted", "scattered columns")]
    pairs = [(names[0], names[3]), (names[1], names[2])]
    every = [dict(enumerate((names[0], *pair))) for pair in pairs]
    check_step(step, args, analysis, every, mesh=mesh_of(a=2, b=4))


def test_each_device_multiplies_its_rows():
    """The compiler would make a product of all rows on every device; here there is none, and none gathers rows."""
    step, args = experts_step(SIZES["uneven"])
    analysis = analyse(step, args, {"x": 8})
    program = StepPrograms(analysis).write_step(dict.fromkeys(range(3), ("rows",)))
    text = lower_program(program, mesh=mesh_of(x=8)).compile().as_text()
    assert re.search(rf"f32\[{ROWS // 8},{HIDDEN}\]\S* dot\(", text)
    assert not re.search(rf"f32\[{ROWS},(?:{HIDDEN}|{DIM})\]", text)
    assert not re.search(r"f32\S* all-gather", text)


def test_gradients_are_found_under_a_checkpoint():
    step, args = experts_step(SIZES["even"], remat=True)
    analysis = analyse(step, args, {"x": 8})
    matched = [
        (found.forward, found.place)
        for position, found in analysis.matches.contractions.items()
        if analysis.graph.equations[position].primitive.name == "ragged_dot_general"
    ]
    assert len(matched) == len(set(matched)) == 4
    check_step(step, args, analysis, [dict.fromkeys(range(3), ("rows",))], mesh=mesh_of(x=8))


def test_a_mixture_of_a_transformer():
    step, args = dropless_step(layers=1)
    analysis = analyse(step, args, {"x": 8})
    (up,), (down,) = ([b for b in analysis.blocks if b.seeds[0].is_ragged and len(b.seeds) == n] for n in (2, 1))
    assert up.names == down.names == ("rows", "columns", "contracted", "scattered columns")
    found = baselines(analysis)
    assert found["megatron"].assignment[up.number] == ("columns",)
    assert found["megatron"].assignment[down.number] == ("contracted",)


@pytest.mark.slow
@pytest.mark.parametrize("axes", [{"x": 8}, {"a": 2, "b": 4}], ids=str)
def test_the_baselines_of_a_transformer(axes):
    step, args = dropless_step(layers=1)
    analysis = analyse(step, args, axes)
    for plan in baselines(analysis).values():
        check_step(step, args, analysis, [plan.assignment], mesh=mesh_of(**axes), storage=plan.storage)


@pytest.mark.parametrize("axes", slow_but_for([{"x": 8}, {"a": 2, "b": 4}], [{"x": 8}]), ids=str)
def test_a_search_shards_experts(axes):
    step, args = dropless_step(layers=1, dim=64, hidden=256)
    mesh = mesh_of(**axes)
    plan = search_sharding(step, args, mesh=mesh, pricer=RooflinePricer("h100-8", mesh), num_finalists=2)
    assert not any("not planned" in note for note in plan.notes)
    wanted = jax.jit(step)(*args)
    check_same(plan.apply(step, donate=False)(plan.shard(args[0]), args[1]), wanted, tolerance=1e-5)
