"""`RemoteMesh.distributed` against plain JAX: it takes what `jax.jit` takes and gives the same numbers."""

import dataclasses
import functools
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import jaxquard as jq
from jaxquard.errors import (
    DeletedArrayError,
    LoopError,
    MeshError,
    RemoteArrayError,
    ShardingError,
    StepWarning,
    TaskFailed,
)
from tests.pipeline import generate
from tests.pipeline.mlp_step import MlpStep, adamw
from tests.pipeline.oracle import assert_close, run_oracle
from tests.pipeline.planning import scheduled, with_schedule

SCHEDULE = jq.schedules.OneFOneB(2)


@pytest.fixture(scope="module")
def mesh():
    with jq.RemoteMesh((2,)) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def wide_mesh():
    with jq.RemoteMesh((2,), spmd_mesh=(2, 2), spmd_axis_names=("data", "model")) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def named_mesh(wide_mesh):
    """The mesh of `NamedSharding`s."""
    return wide_mesh.meshes[0]


def loss_fn(weights, x):
    hidden = jq.pipeline_yield(jnp.tanh(x @ weights["first"]))
    return jnp.mean(jnp.square(hidden @ weights["second"]))


def sgd_step(weights, batch, rate=0.1):
    """The smallest training step; `rate` may be an array, a number or static."""

    def microbatch_grads(x):
        value, grads = jax.value_and_grad(loss_fn)(weights, x)
        return grads, value

    grads, losses = jq.accumulate_grads(microbatch_grads, SCHEDULE)(batch)
    return jax.tree.map(lambda weight, grad: weight - rate * grad, weights, grads), losses


def make_weights(width=4):
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=(width, width)).astype(np.float32) for name in ("first", "second")}


def make_batch(num_microbatches=3, width=4):
    return np.random.default_rng(1).normal(size=(num_microbatches, 2, width)).astype(np.float32)


def expected_sgd(weights, batch, rate=0.1):
    """The result of `sgd_step`, by the oracle."""

    def step(accumulate, weights, batch):
        grads, losses = accumulate(lambda x: jax.value_and_grad(loss_fn)(weights, x)[::-1])(batch)
        return jax.tree.map(lambda weight, grad: weight - rate * grad, weights, grads), losses

    return run_oracle(step, jax.tree.map(jnp.asarray, weights), jnp.asarray(batch))


def fetched(tree):
    return jax.tree.map(jnp.asarray, jax.device_get(tree))


@pytest.fixture(scope="module")
def sgd(mesh):
    return mesh.distributed(sgd_step)


@pytest.fixture(scope="module")
def donating_sgd(mesh):
    return mesh.distributed(sgd_step, donate_argnums=0)


# Numbers, and state from step to step.


@pytest.mark.quick
def test_three_steps_of_training(mesh):
    model = MlpStep(2, is_tied=True, has_dropout=True, optimizer=adamw())
    state, batch = model.arguments(3)
    step = mesh.distributed(with_schedule(model, SCHEDULE), donate_argnums=0)
    remote = state
    for _ in range(3):
        remote, losses = step(remote, batch)
        state, expected = run_oracle(model, state, batch)
        assert_close(fetched(losses), expected)
    assert_close(fetched(remote), state)


def test_state_may_come_as_numpy_as_jax_or_as_results(mesh):
    traced = []

    def step_fn(weights, batch):
        traced.append(1)
        return sgd_step(weights, batch)

    step = mesh.distributed(step_fn)
    weights, batch = make_weights(), make_batch()
    expected, losses = expected_sgd(weights, batch)
    from_numpy, _ = step(weights, batch)
    from_jax, found = step(jax.tree.map(jnp.asarray, weights), jnp.asarray(batch))
    assert_close(fetched(from_numpy), expected)
    assert_close(fetched((from_jax, found)), (expected, losses))
    again, _ = step(from_numpy, batch)
    assert_close(fetched(again), expected_sgd(expected, batch)[0])
    assert len(traced) == 1, "the types are the same, so the program is"


def test_a_new_shape_retraces(sgd):
    weights = make_weights()
    for num_microbatches in (1, 3, 5):
        batch = make_batch(num_microbatches)
        assert_close(fetched(sgd(weights, batch)), expected_sgd(weights, batch))


def test_donated_state_is_gone(donating_sgd):
    weights, batch = make_weights(), make_batch()
    first, _ = donating_sgd(weights, batch)
    second, _ = donating_sgd(first, batch)
    assert first["first"].is_deleted()
    assert not second["first"].is_deleted()
    with pytest.raises(DeletedArrayError) as caught:
        donating_sgd(first, batch)
    assert str(caught.value) == (
        "argument [0]['first'] was donated to an earlier step, which has taken its buffers. Pass the array that step "
        "returned, or do not donate the argument."
    )
    with pytest.raises(DeletedArrayError, match="this array was donated to a distributed step"):
        np.asarray(first["second"])
    expected = expected_sgd(expected_sgd(weights, batch)[0], batch)[0]
    assert_close(fetched(second), expected)


@pytest.mark.parametrize("batch", ["no array", np.ones((3, 2, 5), np.float32)], ids=["type", "shape"])
def test_a_call_that_is_refused_takes_nothing(donating_sgd, batch):
    weights = make_weights()
    state, _ = donating_sgd(weights, make_batch())
    with pytest.raises((TypeError, ValueError)):
        donating_sgd(state, batch)
    assert not state["first"].is_deleted()
    assert_close(fetched(state), expected_sgd(weights, make_batch())[0])


def test_batch_leaves_that_disagree(mesh):
    @functools.partial(mesh.distributed, donate_argnums=0)
    def step(weights, batch):
        loop = jq.accumulate_grads(lambda m: jax.grad(loss_fn)(weights, m["x"]), SCHEDULE)
        return jax.tree.map(jnp.add, weights, loop(batch))

    state = step(make_weights(), {"x": make_batch(3), "y": np.ones(3)})
    line = step.__wrapped__.__code__.co_firstlineno + 3
    with pytest.raises(LoopError) as caught:
        step(state, {"x": make_batch(3), "y": np.ones(2)})
    assert str(caught.value) == (
        f"accumulate_grads at test_distributed.py:{line}: the batch leaves disagree on the number of microbatches, "
        "their first dim: ['x'] has 3, ['y'] has 2. Give every leaf the same."
    )
    assert not state["first"].is_deleted(), "nothing is lost"


def test_state_that_is_not_donated_stays(sgd):
    weights, batch = make_weights(), make_batch()
    first, _ = sgd(weights, batch)
    second, _ = sgd(first, batch)
    third, _ = sgd(first, batch)
    assert not first["first"].is_deleted()
    assert_close(fetched(second), fetched(third))
    assert_close(fetched(first), expected_sgd(weights, batch)[0])


def test_an_array_that_is_donated_and_passed_twice(mesh):
    def step(a, b):
        return a + 1, b + 2

    first, second = mesh.distributed(step)(jnp.ones(2), jnp.ones(2))
    with pytest.raises(DeletedArrayError, match="arguments 0 and 1 are the same array, and one of them is donated"):
        mesh.distributed(step, donate_argnums=0)(first, first)
    assert np.asarray(first).tolist() == [2, 2]
    assert np.asarray(second).tolist() == [3, 3]


# Arguments, as `jax.jit` takes them.


def test_numbers_and_keywords(sgd):
    weights, batch = make_weights(), make_batch()
    for call in (
        lambda: sgd(weights, batch, 0.5),
        lambda: sgd(weights, batch, rate=0.5),
        lambda: sgd(batch=batch, rate=np.float32(0.5), weights=weights),
        lambda: sgd(weights, rate=jnp.float32(0.5), batch=batch),
    ):
        assert_close(fetched(call()), expected_sgd(weights, batch, 0.5))


@pytest.mark.thin(2)
@pytest.mark.parametrize("options", [{"static_argnums": 2}, {"static_argnums": (-1,)}, {"static_argnames": "rate"}])
def test_static_arguments(mesh, options):
    traced = []

    def step_fn(weights, batch, rate=0.1):
        assert isinstance(rate, float)
        traced.append(rate)
        return sgd_step(weights, batch, rate)

    step = mesh.distributed(step_fn, **options)
    weights, batch = make_weights(), make_batch(1)
    for call in (lambda: step(weights, batch, 0.5), lambda: step(weights, batch, rate=0.5)):
        assert_close(fetched(call()), expected_sgd(weights, batch, 0.5))
    step(weights, batch, 0.25)
    assert sorted(set(traced)) == [0.25, 0.5]


def test_a_static_argument_that_cannot_be_hashed(mesh):
    step = mesh.distributed(lambda x, names: x, static_argnums=1)
    with pytest.raises(TypeError) as caught:
        step(jnp.ones(2), ["a"])
    assert str(caught.value) == (
        "a static argument must be hashable, but list is not. Make it hashable, or pass it as a dynamic argument."
    )


def test_leaves_that_are_no_arrays(mesh):
    step = mesh.distributed(lambda x, y: x)
    with pytest.raises(TypeError, match=r"takes arrays, RemoteArrays and numbers; found 'a' of type str"):
        step(jnp.ones(2), "a")
    with pytest.raises(TypeError, match="was called under a JAX transformation"):
        jax.jit(lambda x: step(x, x))(jnp.ones(2))


@functools.partial(jax.tree_util.register_dataclass, data_fields=["weights", "extra"], meta_fields=["name"])
@dataclasses.dataclass(frozen=True)
class Model:
    weights: dict
    extra: object
    name: str


class Both(NamedTuple):
    model: Model
    nothing: None


def test_none_leaves_and_pytrees_of_the_user(mesh):
    @functools.partial(mesh.distributed, donate_argnums=0)
    def step(state, batch):
        weights, losses = sgd_step(state.model.weights, batch["x"])
        assert batch["mask"] is None
        model = dataclasses.replace(state.model, weights=weights)
        return Both(model, None), {"losses": losses, "none": None, "empty": ()}

    weights, batch = make_weights(), make_batch(2)
    state = Both(Model(weights=weights, extra=None, name="model"), None)
    state, metrics = step(state, {"x": batch, "mask": None})
    assert isinstance(state, Both)
    assert state.model.name == "model"
    assert state.model.extra is None
    assert metrics["none"] is None
    assert metrics["empty"] == ()
    assert_close(fetched((state.model.weights, metrics["losses"])), expected_sgd(weights, batch))
    step(state, {"x": batch, "mask": None})


def test_the_name_and_the_docs_of_the_function(sgd, mesh):
    assert sgd.__name__ == "sgd_step"
    assert sgd.__doc__ == sgd_step.__doc__
    assert repr(sgd) == f"DistributedStep(sgd_step on {mesh!r})"
    assert repr(mesh) == "RemoteMesh(2 actors, each data=1)"


# What stands around the loop.


def test_results_that_are_inputs_constants_or_each_other(mesh):
    table = jnp.arange(3.0)

    @functools.partial(mesh.distributed, donate_argnums=0)
    def step(state, x):
        return {"a": state["a"], "b": state["a"]}, x, x, table, 3, jnp.int8(4), table * 2

    state, *results = step({"a": jnp.ones(2)}, jnp.zeros(2))
    state, *results = step({"a": state["a"]}, results[0])
    assert np.asarray(state["b"]).tolist() == [1, 1]
    found = [np.asarray(result).tolist() for result in results]
    assert found == [[0, 0], [0, 0], [0, 1, 2], 3, 4, [0, 2, 4]]
    np.testing.assert_array_equal(table, [0, 1, 2])


def test_a_step_without_a_loop(mesh):
    step = mesh.distributed(lambda state: jax.tree.map(lambda leaf: leaf * 2, state), donate_argnums=0)
    state = step(step({"a": np.ones(2, np.float32), "b": np.arange(3)}))
    assert np.asarray(state["a"]).tolist() == [4, 4]
    assert np.asarray(state["b"]).tolist() == [0, 4, 8]


def test_training_and_evaluation_share_their_state(mesh, donating_sgd):
    @mesh.distributed
    def evaluate(weights, batch):
        return jq.accumulate_grads(lambda x: loss_fn(weights, x), SCHEDULE, "mean")(batch)

    weights, batch = make_weights(), make_batch()
    expected = weights
    for _ in range(2):
        weights, losses = donating_sgd(weights, batch)
        value = evaluate(weights, batch[:2])
        expected, expected_losses = expected_sgd(expected, batch)
        assert_close(fetched(losses), expected_losses)
        expected_value = np.mean([loss_fn(expected, x) for x in batch[:2]])
        np.testing.assert_allclose(float(value), expected_value, rtol=1e-5)
    places = [weights[name].placement[0].actors for name in ("first", "second")]
    assert places == [(0,), (1,)]


def test_two_loops_in_a_step(mesh):
    model = MlpStep(2)
    state, batch = model.arguments(2)

    def twice(accumulate, state, batch):
        state, first = model(accumulate, state, batch)
        state, second = model(accumulate, state, jax.tree.map(lambda leaf: leaf[:1], batch))
        return state, first, second

    found = mesh.distributed(with_schedule(twice, SCHEDULE))(state, batch)
    assert_close(fetched(found), run_oracle(twice, state, batch))


def test_callbacks_run_once_for_each_microbatch(mesh):
    seen = []

    @mesh.distributed
    def step(weights, batch):
        def loss(weights, x):
            hidden = jnp.tanh(x @ weights["first"])
            jax.debug.callback(lambda value: seen.append(("first", value.shape)), hidden)
            hidden = jq.pipeline_yield(hidden) @ weights["second"]
            jax.debug.callback(lambda value: seen.append(("second", value.shape)), hidden)
            return jnp.mean(jnp.square(hidden))

        def microbatch_grads(x):
            value, grads = jax.value_and_grad(loss)(weights, x)
            return grads, value

        grads, losses = jq.accumulate_grads(microbatch_grads, SCHEDULE)(batch)
        jax.debug.callback(lambda value: seen.append(("after", value.shape)), losses)
        return grads, losses

    jax.block_until_ready(step(make_weights(), make_batch(3)))
    end_s = time.monotonic() + 60
    while len(seen) < 7 and time.monotonic() < end_s:  # No result depends on the last of them.
        time.sleep(0.01)
    assert sorted(seen) == [("after", (3,))] + [("first", (2, 4))] * 3 + [("second", (2, 4))] * 3


def test_dtypes_of_results(mesh):
    @mesh.distributed
    def step(batch):
        def outputs(x):
            hidden = jq.pipeline_yield(x.astype(jnp.bfloat16), jnp.sum(x > 0))
            keys = jax.random.fold_in(jax.random.key(1), hidden[1])
            return hidden[0], hidden[0].astype(jnp.float8_e4m3fn), hidden[1].astype(jnp.int8), keys, hidden[1] > 2

        return jq.accumulate_grads(outputs, SCHEDULE, "stack")(batch)

    batch = make_batch(2)
    half, quarter, count, key, flag = step(batch)
    assert [result.dtype for result in (half, quarter, count, flag)] == [
        jnp.bfloat16,
        jnp.float8_e4m3fn,
        jnp.int8,
        jnp.bool_,
    ]
    np.testing.assert_array_equal(np.asarray(half), np.asarray(jnp.asarray(batch, jnp.bfloat16)))
    expected_quarter = np.asarray(jnp.asarray(batch, jnp.bfloat16).astype(jnp.float8_e4m3fn))
    np.testing.assert_array_equal(np.asarray(quarter).astype(np.float32), expected_quarter.astype(np.float32))
    expected_counts = np.sum(batch > 0, axis=(1, 2))
    assert np.asarray(count).tolist() == expected_counts.tolist()
    assert np.asarray(flag).tolist() == (expected_counts > 2).tolist()
    keys = key.fetch()
    expected_keys = jax.vmap(lambda number: jax.random.fold_in(jax.random.key(1), number))(jnp.asarray(expected_counts))
    np.testing.assert_array_equal(jax.random.key_data(keys), jax.random.key_data(expected_keys))
    assert np.isfinite(jax.random.uniform(keys[0]))


def test_keys_as_state(mesh):
    @functools.partial(mesh.distributed, donate_argnums=0)
    def step(state, batch):
        key, noise = jax.random.split(state["key"])
        keys = jax.random.split(noise, batch.shape[0])

        def outputs(microbatch):
            x, key = microbatch
            return jq.pipeline_yield(x + jax.random.normal(key, x.shape))

        return {"key": key}, jq.accumulate_grads(outputs, SCHEDULE, "stack")((batch, keys))

    key, batch = jax.random.key(0), make_batch(2)
    state = {"key": key}
    for _ in range(2):
        state, noisy = step(state, batch)
        key, noise = jax.random.split(key)
        noises = [jax.random.normal(part, batch.shape[1:]) for part in jax.random.split(noise, 2)]
        np.testing.assert_allclose(noisy, batch + np.stack(noises), rtol=1e-6)
    assert state["key"].fetch() == key


# Shardings.


def step_with_constraint(weights, batch):
    def loss(weights, x):
        hidden = jax.lax.with_sharding_constraint(jnp.tanh(x @ weights["first"]), PartitionSpec("data", "model"))
        hidden = jq.pipeline_yield(hidden)
        return jnp.mean(jnp.square(hidden @ weights["second"]))

    def microbatch_grads(x):
        value, grads = jax.value_and_grad(loss)(weights, x)
        return grads, value

    grads, losses = jq.accumulate_grads(microbatch_grads, SCHEDULE)(batch)
    return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, weights, grads), losses


COLUMNS = PartitionSpec(None, "model")


@pytest.mark.parametrize(
    "in_shardings",
    [
        (COLUMNS, PartitionSpec(None, "data")),
        ({"first": COLUMNS, "second": PartitionSpec("model")}, None),
        [{"first": COLUMNS, "second": None}, PartitionSpec()],
    ],
    ids=["prefix", "leaves", "list"],
)
def test_shardings_of_arguments(wide_mesh, in_shardings):
    step = wide_mesh.distributed(step_with_constraint, in_shardings=in_shardings, donate_argnums=0)
    weights, batch = make_weights(), make_batch()
    state, losses = step(weights, batch)
    state, losses = step(state, batch)
    expected, _ = expected_sgd(weights, batch)
    assert_close(fetched((state, losses)), expected_sgd(expected, batch))
    given = in_shardings[0]
    first = given if isinstance(given, PartitionSpec) else given["first"]
    assert state["first"].placement[0].spec == first, "state comes back as it came"


def test_named_shardings_and_shardings_of_results(wide_mesh, named_mesh):
    weights, batch = make_weights(), make_batch()
    step = wide_mesh.distributed(
        step_with_constraint,
        in_shardings=NamedSharding(named_mesh, PartitionSpec()),
        out_shardings=({"first": PartitionSpec("data"), "second": COLUMNS}, None),
    )
    state, losses = step(weights, batch)
    assert state["first"].placement[0].spec == PartitionSpec("data")
    assert state["second"].placement[0].spec == COLUMNS
    again, _ = step(state, batch)
    expected = expected_sgd(weights, batch)
    assert_close(fetched((state, losses)), expected)
    assert_close(fetched(again), expected_sgd(expected[0], batch)[0])


def test_constraints_mean_the_mesh_of_the_actor(wide_mesh, named_mesh):
    """Also under `jax.set_mesh` of a mesh of the same axes, and through `jax.sharding.get_abstract_mesh`."""

    def fn(x):
        mesh = jax.sharding.get_abstract_mesh()
        assert mesh.axis_names == ("data", "model")
        x = jax.lax.with_sharding_constraint(x, NamedSharding(named_mesh, PartitionSpec("data")))
        return jax.lax.with_sharding_constraint(x * 2, NamedSharding(mesh, COLUMNS))

    step = wide_mesh.distributed(fn)
    x = np.ones((4, 4), np.float32)
    np.testing.assert_array_equal(step(x), 2 * x)
    with jax.set_mesh(named_mesh):
        np.testing.assert_array_equal(step(x), 2 * x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"in_shardings": ({"first": PartitionSpec("pipeline"), "second": None}, None)},
            "in_shardings[0]['first'] names the axis 'pipeline', but the actors' mesh has 'data', 'model'.",
        ),
        (
            {"in_shardings": (None, PartitionSpec("data"))},
            f"in_shardings[1] is {PartitionSpec('data')}: a dim of size 3 cannot be sharded into 2 equal parts "
            "(shape (3, 2, 4)).",
        ),
        (
            {"in_shardings": (PartitionSpec("data", None, "model"), None)},
            f"in_shardings[0]['first'] is {PartitionSpec('data', None, 'model')}, which has more dims than the array's "
            "shape (4, 4).",
        ),
        (
            {"out_shardings": ({"first": PartitionSpec("rows"), "second": None}, None)},
            "out_shardings[0]['first'] names the axis 'rows', but the actors' mesh has 'data', 'model'.",
        ),
        (
            {"in_shardings": ("data", None)},
            "in_shardings[0]['first'] must be a PartitionSpec or a NamedSharding; found 'data'.",
        ),
    ],
    ids=["axis", "size", "dims", "result", "type"],
)
def test_shardings_that_do_not_fit(wide_mesh, options, message):
    step = wide_mesh.distributed(sgd_step, **options)
    with pytest.raises(ShardingError) as caught:
        step(make_weights(), make_batch())
    assert str(caught.value) == message


def test_shardings_of_another_structure(wide_mesh):
    step = wide_mesh.distributed(sgd_step, in_shardings=({"other": PartitionSpec()}, None))
    with pytest.raises(ShardingError, match="in_shardings does not fit: it must be a pytree prefix of"):
        step(make_weights(), make_batch())


# Handles, errors, seeing it.


def test_results_are_handles(sgd):
    weights, losses = sgd(make_weights(), make_batch())
    assert losses.shape == (3,)
    with pytest.raises(RemoteArrayError, match=r"cannot be used in a JAX function: .*jax\.device_get"):
        jnp.sum(losses)
    with pytest.raises(RemoteArrayError, match="cannot be used in arithmetic"):
        weights["first"] + 1
    assert f"{float(np.asarray(losses)[0]):.2f}"


def test_an_error_in_a_task_names_it(mesh):
    def explode(x):
        raise ValueError("out of ink")

    @mesh.distributed
    def step(batch):
        def outputs(x):
            hidden = jq.pipeline_yield(jnp.tanh(x @ x.T), name="quiet")
            return jax.pure_callback(explode, jax.ShapeDtypeStruct(hidden.shape, hidden.dtype), hidden)

        return jq.accumulate_grads(outputs, SCHEDULE, "stack")(batch)

    results = step(make_batch())
    with pytest.raises(TaskFailed, match=r"task 1F0 failed on actor 1: .*out of ink.* Nothing was donated") as caught:
        np.asarray(results)
    assert "ValueError" in str(caught.value)
    assert np.asarray(mesh.distributed(lambda x: x + 1)(jnp.zeros(2))).tolist() == [1, 1], "the mesh lives on"


def test_lowering_needs_types_only(sgd):
    types = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (make_weights(), make_batch()))
    lowered = sgd.lower(*types)
    assert len(lowered.program.actors) == 2
    assert str(lowered) == lowered.as_text() == str(lowered.program)
    assert "1FB0" in str(lowered)
    assert "accumulate_grads OneFOneB(2)" in lowered.as_text("commute_sums")
    with pytest.raises(KeyError, match="there is no pass 'nothing'; the passes are trace, own_mesh"):
        lowered.as_text("nothing")


def test_timeline(mesh):
    step = mesh.distributed(sgd_step, measure=True)
    with pytest.raises(MeshError, match=r"no call of this step was measured. Make it with distributed\(..., measure"):
        step.timeline()
    step(make_weights(), make_batch())
    timeline = step.timeline()
    names = {span.name for span in timeline.spans}
    assert {"0F0", "1FB0", "0B2", "after.0"} <= names
    assert timeline.num_actors == 2
    assert 0 <= timeline.bubble < 1
    step.measure = False
    step(make_weights(), make_batch())
    with pytest.raises(MeshError, match="no call of this step was measured"):
        step.timeline()


def test_progress_of_compiling(mesh):
    seen = []
    step = mesh.distributed(lambda x: x * 3, progress=lambda done, total, name: seen.append((done, total, name)))
    step(jnp.ones(2))
    step(jnp.ones(2))
    assert seen == [(1, 1, "before.0")]


# Meshes.


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        (((2,),), {"runtime": "clouds"}, "runtime='clouds' is not known. Use one of: 'in_process', 'ray'."),
        (((0,),), {}, "shape=(0,) must be a tuple of whole numbers, 1 or more."),
        (((2, 2),), {}, "shape=(2, 2) has 2 dims; give the number of actors: (4,)."),
        (((2,), (2, 0)), {}, "spmd_mesh=(2, 0) must be a tuple of whole numbers, 1 or more."),
        (
            ((2,), (2, 2), ("data",)),
            {},
            "spmd_axis_names=('data',) must name the 2 axes of spmd_mesh=(2, 2), each differently.",
        ),
        (
            ((2,), (2, 2), ("data", "data")),
            {},
            "spmd_axis_names=('data', 'data') must name the 2 axes of spmd_mesh=(2, 2), each differently.",
        ),
    ],
    ids=["runtime", "no actors", "dims", "no devices", "too few names", "equal names"],
)
def test_meshes_that_cannot_be(args, options, message):
    with pytest.raises(MeshError) as caught:
        jq.RemoteMesh(*args, **options)
    assert str(caught.value) == message


def test_too_few_devices_on_an_accelerator(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: jax.local_devices()[:4])
    with pytest.raises(MeshError) as caught:
        jq.RemoteMesh((3,), spmd_mesh=(2,))
    assert str(caught.value) == (
        "3 actors of 2 devices need 6 devices, but there are 4 (cpu). Use fewer actors or a smaller spmd_mesh, or "
        "pass share_devices=True to let actors share devices."
    )
    with pytest.raises(MeshError, match=r"need 16 devices, but there are 4 \(cpu\). Use fewer actors or a"):
        jq.RemoteMesh((2,), spmd_mesh=(8,))
    with jq.RemoteMesh((3,), spmd_mesh=(2,), share_devices=True) as mesh:
        used = [[device.id for device in found.devices.flat] for found in mesh.meshes]
    ids = [device.id for device in jax.local_devices()[:4]]
    assert used == [ids[:2], ids[2:], ids[:2]]


def test_a_closed_mesh():
    with jq.RemoteMesh((1,)) as mesh:
        result = mesh.distributed(lambda x: x + 1)(jnp.zeros(2))
        assert np.asarray(result).tolist() == [1, 1]
    with pytest.raises(MeshError, match="the mesh is closed"):
        mesh.distributed(lambda x: x + 1)(jnp.zeros(2))


def test_schedule_for_another_number_of_actors(mesh):
    model = MlpStep(4)
    step = mesh.distributed(with_schedule(model, jq.schedules.OneFOneB(4)))
    with pytest.raises(jq.errors.ScheduleError, match=r"OneFOneB\(4\) .* is for 4 actors, but the mesh has 2"):
        step(*model.arguments(2))


def test_other_schedules_on_the_engine(mesh):
    """One program of each kind that the others do not have: split backwards, two stages an actor."""
    model = MlpStep(4, is_tied=True, is_rematted=True)
    state, batch = model.arguments(3)
    expected = run_oracle(model, state, batch)
    for schedule in (jq.schedules.ZeroBubbleV(4), jq.schedules.Interleaved(4, 2)):
        found = mesh.distributed(functools.partial(model, scheduled(schedule)))(state, batch)
        assert_close(fetched(found), expected)


def test_a_stage_graph_with_everything_on_the_engine(mesh):
    """Int, bool and key values through marks, skips, diamonds, casts, checkpoints, dropout, metrics of all kinds."""
    op = generate.Op
    recipe = generate.Recipe(
        stages=(
            generate.Stage((op("dense"), op("flag", pool=1), op("embed"), op("join", 0, 2)), (0, 1), True, True),
            generate.Stage((op("remat", pool=1), op("masked"), op("dropout", pool=1), op("metric")), (2,), True),
            generate.Stage((op("cond"), op("add", 0, 3), op("count"), op("odd_metric", width=2), op("aux")), (4,)),
            generate.Stage((op("transposed"), op("scan"), op("frozen"), op("stopped"), op("count", pool=1))),
        ),
        optimizer="momentum",
        words=(0, 3, 4, 2, 1),
    )
    step = generate.make_step(recipe)
    state, batch = generate.make_arguments(recipe, 3)
    schedule = jq.schedules.ZeroBubbleV(4)
    found = mesh.distributed(with_schedule(step, schedule), donate_argnums=0)(state, batch)
    assert_close(jax.tree.map(lambda leaf: jnp.asarray(leaf.fetch()), found), run_oracle(step, state, batch))


def test_double_precision(mesh):
    with jax.enable_x64(True):
        weights = jax.tree.map(lambda leaf: leaf.astype(np.float64), make_weights())
        batch = make_batch().astype(np.float64)
        state, losses = mesh.distributed(sgd_step)(weights, batch)
        assert state["first"].dtype == jnp.float64
        assert_close(fetched((state, losses)), expected_sgd(weights, batch), relative=1e-12)


def test_optax_state_is_spread_over_the_actors(mesh):
    model = MlpStep(2, optimizer=optax.adamw(0.1))
    state, batch = model.arguments(2)
    state, _ = mesh.distributed(with_schedule(model, SCHEDULE), donate_argnums=0)(state, batch)
    mu = state["optimizer"][0].mu["layers"]
    assert [layer["kernel"].placement[0].actors for layer in mu] == [(0,), (1,)]
    assert state["optimizer"][0].count.placement[0].actors == (0, 1)


def test_a_step_on_one_of_several_actors_warns_once(mesh):
    step = mesh.distributed(lambda weight, x: x @ weight)
    args = np.ones((2, 2), np.float32), np.ones((3, 2), np.float32)
    with pytest.warns(StepWarning, match="runs on actor 0 of 2 alone") as found:
        first, second = step(*args), step(*args)
    assert len(found) == 1
    np.testing.assert_array_equal(np.asarray(first), np.asarray(second))
