"""Generated programs, schedules, shardings and frameworks on actors that are processes, against plain JAX."""

import functools

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxquard as jq
from jaxquard.models import gpt
from jaxquard.planner.record.plan import Recompute
from tests.frameworks import test_equinox, test_plain, transformer
from tests.pipeline import generate, generate_carries, generate_scans
from tests.pipeline import test_named_marks as test_named_marks_in_process
from tests.pipeline.mlp_step import MlpStep, adamw
from tests.pipeline.oracle import assert_close, run_oracle
from tests.pipeline.planning import with_schedule
from tests.pipeline.test_generated_programs import CAST_TOLERANCE
from tests.planner.step.generate import Recipe, Wish
from tests.planner.step.test_random_plans import check_plan
from tests.runtime import test_initial_state
from tests.runtime.ray.borrow_tests import borrow_tests
from tests.runtime.test_distributed import expected_sgd, fetched, make_batch, make_weights, sgd_step

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

globals().update(borrow_tests(test_initial_state))


@pytest.fixture(scope="module")
def narrow_mesh(shared_meshes):
    return shared_meshes["narrow"]


@pytest.fixture(scope="module")
def mesh(shared_meshes):
    return shared_meshes["wide"]


def check_step(mesh, step, schedule, state, batch, *, donates=True, relative=1e-5):
    distributed = mesh.distributed(with_schedule(step, schedule), donate_argnums=0 if donates else ())
    found = jax.tree.map(lambda leaf: jnp.asarray(leaf.fetch()), distributed(state, batch))
    assert_close(found, run_oracle(step, state, batch), relative=relative)


def check_graph(mesh, data):
    num_microbatches = data.draw(st.integers(1, 4))
    schedule = data.draw(generate.schedules(num_microbatches, st.just(2)))
    recipe = data.draw(generate.recipes(schedule.num_stages))
    state, batch = generate.make_arguments(recipe, num_microbatches)
    relative = CAST_TOLERANCE if recipe.has_casts else 1e-5
    donates = data.draw(st.booleans())
    check_step(mesh, generate.make_step(recipe), schedule, state, batch, donates=donates, relative=relative)


def check_scan(mesh, data):
    num_microbatches = data.draw(st.integers(1, 3))
    schedule = data.draw(generate.schedules(num_microbatches, st.just(2)))
    recipe = data.draw(generate_scans.scan_recipes(schedule.num_stages))
    state, batch = generate_scans.make_scan_arguments(recipe, num_microbatches)
    check_step(mesh, generate_scans.make_scan_step(recipe), schedule, state, batch)


def test_carry(narrow_mesh):
    carries = (("mean", 0, ()), ("mean", 1, ()), ("key", 0, (0, 1)), ("last", 0, (1,)), ("gradient", 1, ()))
    recipe = generate_carries.CarryRecipe(2, carries, is_rematted=True)
    state, batch = generate_carries.make_arguments(recipe, 3)
    check_step(narrow_mesh, generate_carries.make_step(recipe), jq.schedules.OneFOneB(2), state, batch)


@settings(max_examples=2)
@given(st.data())
def test_stage_graphs(narrow_mesh, data):
    check_graph(narrow_mesh, data)


@pytest.mark.slow
@settings(max_examples=30)
@given(st.data())
def test_many_stage_graphs(narrow_mesh, data):
    check_graph(narrow_mesh, data)


@pytest.mark.slow
@settings(max_examples=10)
@given(st.data())
def test_scans(narrow_mesh, data):
    check_scan(narrow_mesh, data)


@pytest.mark.slow
@settings(max_examples=10)
@given(st.data())
def test_stage_graphs_on_several_devices(mesh, data):
    check_graph(mesh, data)


@pytest.mark.parametrize(
    "schedule",
    [
        jq.schedules.Interleaved(4, 2),
        pytest.param(jq.schedules.ZeroBubbleH2(2), marks=pytest.mark.slow),
        pytest.param(jq.schedules.DualPipeV(4), marks=pytest.mark.slow),
        pytest.param(jq.schedules.EagerOneFOneB(2), marks=pytest.mark.slow),
        pytest.param(jq.schedules.GPipe(2), marks=pytest.mark.slow),
    ],
    ids=repr,
)
def test_schedules_with_tied_weights_in_bfloat16(narrow_mesh, schedule):
    model = MlpStep(schedule.num_stages, is_tied=True, skips=True, dtype=jnp.bfloat16, optimizer=adamw())
    check_step(narrow_mesh, model, schedule, *model.arguments(4))


def test_results_of_one_program_in_another(narrow_mesh):
    """Two programs on one mesh; the second wants the weights on the other actors."""
    weights, batch = make_weights(), make_batch()
    step = narrow_mesh.distributed(sgd_step)
    swapped = narrow_mesh.distributed(
        lambda weights, batch: sgd_step({"first": weights["second"], "second": weights["first"]}, batch)
    )
    first, _ = step(weights, batch)
    found = swapped(first, batch)
    expected, _ = expected_sgd(weights, batch)
    expected = expected_sgd({"first": expected["second"], "second": expected["first"]}, batch)
    assert_close(fetched(found), expected)
    assert_close(fetched(swapped(first, batch)), expected)


def test_named_marks(narrow_mesh):
    """Three calls of a critic, one of them through its gradient; 3 stages on 2 actors."""
    schedule = jq.schedules.Custom(["0F0,1F0,0F1,1F1,1B0,0B0,1B1,0B1", "2F0,2B0,2F1,2B1"])
    step, weights, _ = test_named_marks_in_process.scenario("gradient penalty")
    batch = test_named_marks_in_process.make_batch("real", "fake", num_microbatches=2)
    check_step(narrow_mesh, step, schedule, weights, batch)


# Frameworks: their tests make a mesh of their own, and get a shared one here.


@pytest.fixture
def shared_in_frameworks(narrow_mesh, monkeypatch):
    class Borrowed:
        def __init__(self, shape):
            assert shape == narrow_mesh.shape

        def __enter__(self):
            return narrow_mesh

        def __exit__(self, *_):
            pass

    class Jaxquard:
        RemoteMesh = Borrowed

        def __getattr__(self, name):
            return getattr(jq, name)

    monkeypatch.setattr(transformer, "jq", Jaxquard())


@pytest.mark.slow
@pytest.mark.usefixtures("shared_in_frameworks")
def test_gpt_with_layers_in_a_scan():
    test_plain.test_layers_in_a_scan()


@pytest.mark.slow
@pytest.mark.usefixtures("shared_in_frameworks")
def test_equinox_transformer():
    test_equinox.test_two_steps()


# Collectives between actors.


@pytest.fixture(scope="module")
def collective_mesh(shared_meshes):
    return shared_meshes["collective"]


def test_three_steps_over_collectives(collective_mesh):
    model = MlpStep(2, is_tied=True, has_dropout=True, optimizer=adamw())
    state, batch = model.arguments(3)
    step = collective_mesh.distributed(with_schedule(model, jq.schedules.OneFOneB(2)), donate_argnums=0)
    remote = state
    for _ in range(3):
        remote, losses = step(remote, batch)
        state, expected = run_oracle(model, state, batch)
        assert_close(fetched(losses), expected)
    assert_close(fetched(remote), state)


@pytest.mark.slow
@settings(max_examples=10)
@given(st.data())
def test_stage_graphs_over_collectives(collective_mesh, data):
    check_graph(collective_mesh, data)


@pytest.mark.slow
def test_gpt_loss_falls(narrow_mesh):
    """A dozen steps of the demo's model, its state drawn on the actors."""
    config = test_plain.CONFIG
    loss_fn = functools.partial(gpt.loss, config=config, mark=jq.pipeline_yield, num_stages=2)

    def train_step(params, batch):
        def microbatch_grads(microbatch):
            value, grads = jax.value_and_grad(loss_fn)(params, microbatch)
            return grads, value

        grads, losses = jq.accumulate_grads(microbatch_grads, jq.schedules.OneFOneB(2))(batch)
        return jax.tree.map(lambda p, g: p - 0.3 * g, params, grads), jnp.mean(losses)

    step = narrow_mesh.distributed(train_step, donate_argnums=0)
    params = narrow_mesh.init(functools.partial(gpt.init, config=config), jax.random.key(0))
    history = []
    for _ in range(12):
        params, loss = step(params, transformer.make_batch())
        history.append(loss)
    losses = [float(loss) for loss in history]
    assert losses[-1] < 0.8 * losses[0]


def test_a_plan_on_ray_has_the_numbers_of_one_jit(mesh):
    recipe = Recipe(layers=("mlp", ("normed", 2)), is_tied=True, optimizer="adam")
    wish = Wish(axes=(2, 2), schedule="1f1b", storage="zero 3", recompute=Recompute.SELECTIVE, seed=3)
    check_plan(recipe, wish, mesh=mesh)
