"""Steps on meshes with explicit axes: shardings in types inside stages, across marks and in the optimizer."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import jaxquard as jq
from jaxquard.errors import LoopError, MeshError
from jaxquard.runtime.ray.export_calls import export_call, import_call

AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
NUM_MICROBATCHES = 4
SPECS = {
    "first": PartitionSpec(None, "model"),
    "second": PartitionSpec("model"),
    "third": PartitionSpec(),
}


@pytest.fixture(scope="module")
def explicit_mesh():
    with jq.RemoteMesh((3,), (2, 2), spmd_axis_types=EXPLICIT) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def mixed_mesh():
    with jq.RemoteMesh((3,), (2, 2), spmd_axis_types=(AUTO, EXPLICIT)) as mesh:
        yield mesh


def make_params():
    random = np.random.default_rng(0)
    shapes = {"first": (6, 8), "second": (8, 6), "third": (6, 4)}
    return {name: random.normal(scale=0.5, size=shape).astype(np.float32) for name, shape in shapes.items()}


def make_batch():
    return np.random.default_rng(1).normal(size=(NUM_MICROBATCHES, 8, 6)).astype(np.float32)


def loss_fn(params, x, reshard=lambda value, *spec: value, product=lambda lhs, rhs, *spec: lhs @ rhs):
    """A loss of three stages; `reshard` and `product` say how values are sharded, on one device they do not."""
    hidden = jq.pipeline_yield(jnp.tanh(x @ params["first"]))
    hidden = reshard(product(hidden, params["second"], "data"), None, "model")
    hidden = jq.pipeline_yield(jnp.tanh(hidden))
    return jnp.mean((reshard(hidden, "data") @ params["third"]) ** 2)


def typed_loss(params, x, seen=None, is_explicit=lambda axis: True):
    """The loss with shardings in types; the axes that are not explicit are left out of them."""

    def partition(spec):
        return PartitionSpec(*(axis if axis is not None and is_explicit(axis) else None for axis in spec))

    def reshard(value, *spec):
        if seen is not None:
            seen.append(str(jax.typeof(value)))
        return jax.sharding.reshard(value, partition(spec))

    return loss_fn(params, x, reshard, lambda lhs, rhs, *spec: jnp.dot(lhs, rhs, out_sharding=partition(spec)))


def adam_step(params, moments, batch, loss, schedule):
    def one(x):
        value, grads = jax.value_and_grad(loss)(params, x)
        return grads, value, value

    grads, losses, largest = jq.accumulate_grads(one, schedule, ("mean", "stack", "max"))(batch)
    updates, moments = optax.adam(0.1).update(grads, moments, params)
    return optax.apply_updates(params, updates), moments, losses, largest


@functools.cache
def expected_steps(num_steps):
    """The state after some steps and the last losses, by a plain loop on one device."""
    params = jax.tree.map(jnp.asarray, make_params())
    moments = optax.adam(0.1).init(params)
    for _ in range(num_steps):
        found = [jax.value_and_grad(loss_fn)(params, x) for x in make_batch()]
        grads = jax.tree.map(lambda *grads: sum(grads) / NUM_MICROBATCHES, *[grads for _, grads in found])
        updates, moments = optax.adam(0.1).update(grads, moments, params)
        params = optax.apply_updates(params, updates)
    losses = np.array([loss for loss, _ in found])
    return params, moments, losses, losses.max()


def assert_close(found, expected):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6), found, expected
    )


def run_steps(mesh, loss, schedule, num_steps=2):
    step = mesh.distributed(
        functools.partial(adam_step, loss=loss, schedule=schedule),
        in_shardings=(SPECS, None, PartitionSpec(None, "data")),
        donate_argnums=(0, 1),
    )
    params, moments = make_params(), optax.adam(0.1).init(make_params())
    for _ in range(num_steps):
        params, moments, *rest = step(params, moments, make_batch())
    return params, moments, *rest


def check_mixed(mesh):
    found = run_steps(
        mesh, functools.partial(typed_loss, is_explicit=lambda axis: axis == "model"), jq.schedules.OneFOneB(3)
    )
    assert_close(found, expected_steps(2))
    assert found[0]["second"].placement[0].spec == SPECS["second"]


def test_types_cross_marks_and_reach_the_optimizer(explicit_mesh):
    seen: list[str] = []
    found = run_steps(explicit_mesh, functools.partial(typed_loss, seen=seen), jq.schedules.OneFOneB(3))
    assert_close(found, expected_steps(2))
    assert set(seen) == {"float32[8@data,6]", "float32[8,6@model]"}, "also after the marks"
    params, (adam, _), _, _ = found
    for name, spec in SPECS.items():
        assert params[name].placement[0].spec == spec, "state comes back as it came"
        if any(spec):
            assert adam.mu[name].placement[0].spec == spec, "its moments follow from the types"


@pytest.mark.slow
@pytest.mark.parametrize("schedule", [jq.schedules.GPipe(3), jq.schedules.ZeroBubbleH1(3)], ids=str)
def test_other_schedules(explicit_mesh, schedule):
    assert_close(run_steps(explicit_mesh, typed_loss, schedule), expected_steps(2))


def test_mixed_axes(mixed_mesh):
    check_mixed(mixed_mesh)


def test_a_look_up_in_axes_that_it_makes_automatic(explicit_mesh):
    """A gather with an `out_sharding` is an `auto_axes`, whose literals have types on a mesh of other axis types."""

    def loss(table, tokens, look_up):
        hidden = jq.pipeline_yield(jnp.cos(look_up(table, tokens)))
        return jnp.sum(jq.pipeline_yield(jnp.sin(hidden)) ** 2)

    def typed(table, tokens):
        return table.at[tokens].get(out_sharding=PartitionSpec("data", None, "model"))

    def step(table, batch):
        grad = jax.grad(functools.partial(loss, look_up=typed))
        return jq.accumulate_grads(lambda tokens: grad(table, tokens), jq.schedules.OneFOneB(3))(batch)

    random = np.random.default_rng(0)
    table, batch = random.normal(size=(10, 4)).astype(np.float32), random.integers(0, 10, size=(2, 4, 6))
    specs = (PartitionSpec(None, "model"), PartitionSpec(None, "data"))
    grad = jax.grad(functools.partial(loss, look_up=lambda table, tokens: jnp.asarray(table)[tokens]))
    expected = sum(grad(table, tokens) for tokens in batch)
    assert_close(explicit_mesh.distributed(step, in_shardings=specs)(table, batch), expected)


def in_scan(x, weight):
    def layer(hidden, _):
        return jax.lax.with_sharding_constraint(jnp.tanh(hidden @ weight), PartitionSpec("data", "model")), None

    return jax.lax.scan(layer, x, length=2)[0]


def in_checkpoint(x, weight):
    return jax.checkpoint(lambda x: jnp.sin(jnp.tanh(x @ weight) @ weight))(x)


def in_shard_map(x, weight):
    def multiply(x, weight):
        return jax.lax.psum(x @ weight, "model")

    specs = PartitionSpec("data", "model"), PartitionSpec("model")
    return jnp.tanh(jax.shard_map(multiply, in_specs=specs, out_specs=PartitionSpec("data"))(x, weight))


@pytest.mark.slow
@pytest.mark.parametrize("layer", [in_scan, in_checkpoint, in_shard_map])
def test_functions_under_auto_axes(explicit_mesh, layer):
    """A gradient through `auto_axes`, with a mark inside of one and behind another."""

    def tail(hidden, weight):
        return jnp.mean((jq.pipeline_yield(jnp.sin(hidden)) @ weight) ** 2)

    def typed(weights, x):
        hidden = jax.sharding.auto_axes(layer, out_sharding=PartitionSpec("data"))(x, weights["first"])
        return jax.sharding.auto_axes(tail, out_sharding=PartitionSpec())(jq.pipeline_yield(hidden), weights["second"])

    def plain(weights, x):
        hidden = in_plain_jax(x, weights["first"])
        return jnp.mean((jnp.sin(hidden) @ weights["second"]) ** 2)

    def in_plain_jax(x, weight):
        if layer is in_shard_map:
            return jnp.tanh(x @ weight)
        return jnp.tanh(jnp.tanh(x @ weight) @ weight) if layer is in_scan else jnp.sin(jnp.tanh(x @ weight) @ weight)

    random = np.random.default_rng(0)
    weights = {name: random.normal(size=(8, 8)).astype(np.float32) for name in ("first", "second")}
    batch = random.normal(size=(3, 4, 8)).astype(np.float32)
    specs = {"first": PartitionSpec(None, "model"), "second": PartitionSpec("model")}
    step = explicit_mesh.distributed(
        lambda weights, batch: jq.accumulate_grads(lambda x: jax.grad(typed)(weights, x), jq.schedules.OneFOneB(3))(
            batch
        ),
        in_shardings=(specs, PartitionSpec(None, "data")),
    )
    expected = jax.tree.map(lambda *grads: sum(grads), *[jax.grad(plain)(weights, x) for x in batch])
    assert_close(step(weights, batch), expected)


@pytest.mark.slow
def test_plain_jit_under_the_same_mesh():
    """The same step runs under `jax.set_mesh` on one mesh: nothing in it is jaxquard's own."""
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"), axis_types=(EXPLICIT,) * 2)
    with jax.set_mesh(mesh):
        params = {name: jax.device_put(leaf, NamedSharding(mesh, SPECS[name])) for name, leaf in make_params().items()}
        batch = jax.device_put(make_batch(), NamedSharding(mesh, PartitionSpec(None, "data")))
        step = jax.jit(functools.partial(adam_step, loss=typed_loss, schedule=jq.schedules.OneFOneB(3)))
        assert_close(step(params, optax.adam(0.1).init(params), batch), expected_steps(1))


def test_initial_state_has_shardings_in_types(explicit_mesh):
    def init(key):
        keys = jax.random.split(key, len(SPECS))
        params = {
            name: jax.random.normal(key, leaf.shape, out_sharding=SPECS[name])
            for key, (name, leaf) in zip(keys, make_params().items(), strict=True)
        }
        return params, optax.adam(0.1).init(params)

    params, moments = explicit_mesh.init(init, jax.random.key(0))
    assert params["first"].type.spec == ((), ("model",))
    traced = []

    @functools.partial(explicit_mesh.distributed, in_shardings=(None, None, PartitionSpec(None, "data")))
    def step(params, moments, batch):
        traced.append(str(jax.typeof(params["first"])))
        return adam_step(params, moments, batch, typed_loss, jq.schedules.OneFOneB(3))

    params, moments, *_ = step(params, moments, make_batch())
    params, moments, *_ = step(params, moments, make_batch())
    assert traced == ["float32[6,8@model]"], "types do not change from step to step, so it is traced once"
    assert moments[0].nu["second"].placement[0].spec == SPECS["second"]


@pytest.mark.slow
def test_stacked_layers_and_shared_weights(explicit_mesh):
    """Layers in a scan that is split into stages, and an embedding that two actors use."""
    random = np.random.default_rng(2)
    layers = random.normal(scale=0.3, size=(6, 8, 8)).astype(np.float32)
    shared = random.normal(scale=0.3, size=(6, 8)).astype(np.float32)

    def loss(weights, x, reshard=lambda value, *spec: value):
        def layer(hidden, weight):
            product = jnp.dot(reshard(hidden, "data"), weight)
            return jnp.tanh(product), None

        hidden, _ = jq.pipeline_scan(
            layer, reshard(x @ weights["shared"], "data", "model"), weights["layers"], num_stages=3
        )
        return jnp.mean((reshard(hidden, "data") @ reshard(weights["shared"]).T) ** 2)

    def typed(weights, x):
        return loss(weights, x, lambda value, *spec: jax.sharding.reshard(value, PartitionSpec(*spec)))

    weights = {"layers": layers, "shared": shared}
    specs = {"layers": PartitionSpec(None, None, "model"), "shared": PartitionSpec(None, "model")}
    step = explicit_mesh.distributed(
        lambda weights, batch: jax.tree.map(
            lambda weight, grad: weight - 0.1 * grad,
            weights,
            jq.accumulate_grads(lambda x: jax.grad(typed)(weights, x), jq.schedules.OneFOneB(3))(batch),
        ),
        in_shardings=(specs, PartitionSpec(None, "data")),
    )
    found = step(weights, make_batch())
    grads = [jax.grad(loss)(weights, x) for x in make_batch()]
    assert_close(found, jax.tree.map(lambda weight, *grads: weight - 0.1 * sum(grads), weights, *grads))
    assert [part.actors for part in found["layers"].placement] == [(0,), (1,), (2,)]


def test_shardings_of_results(explicit_mesh):
    out = {"kept": None, "moved": PartitionSpec("model", "data")}
    step = explicit_mesh.distributed(
        lambda x: {"kept": x + 1, "moved": x * 2}, in_shardings=PartitionSpec("data"), out_shardings=out
    )
    found = step(np.ones((4, 4), np.float32))
    assert found["kept"].placement[0].spec == PartitionSpec("data")
    assert found["moved"].placement[0].spec == out["moved"]
    assert np.asarray(found["moved"]).tolist() == np.full((4, 4), 2).tolist()


def test_arrays_bring_their_types(explicit_mesh):
    """An argument without a spec is typed as it comes, as under `jax.jit`."""
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("data", "model"), axis_types=(EXPLICIT,) * 2)
    seen = []

    @explicit_mesh.distributed
    def step(x):
        seen.append(str(jax.typeof(x)))
        return x + 1

    x = jax.device_put(np.ones((4, 4), np.float32), NamedSharding(mesh, PartitionSpec(None, "data")))
    found = step(step(x))
    assert seen == ["float32[4,4@data]"]
    assert np.asarray(found).tolist() == np.full((4, 4), 3).tolist()
    step(np.ones((4, 4), np.float32))
    assert seen[1:] == ["float32[4,4]"]


def test_microbatches_sharded_by_their_type(explicit_mesh):
    step = explicit_mesh.distributed(
        lambda batch: jq.accumulate_grads(lambda x: x, jq.schedules.OneFOneB(3))(batch),
        in_shardings=PartitionSpec("data"),
    )
    with pytest.raises(LoopError) as caught:
        step(np.ones((4, 2), np.float32))
    assert "the batch is sharded over 'data' along its first dim, the microbatches" in str(caught.value)
    assert "reshard" in str(caught.value)


@pytest.mark.parametrize(
    ("types", "message"),
    [
        ((EXPLICIT,), "must give the 2 axes of spmd_mesh=(2, 2) a type each"),
        ((EXPLICIT, AxisType.Manual), "AxisType.Auto or .Explicit"),
        ("explicit", "must give the 2 axes"),
    ],
)
def test_types_that_cannot_be(types, message):
    with pytest.raises(MeshError) as caught:
        jq.RemoteMesh((2,), (2, 2), spmd_axis_types=types)
    assert message in str(caught.value)


def test_code_for_another_process(explicit_mesh):
    """There the mesh has automatic axes only: lowered code has no types."""
    step = explicit_mesh.distributed(
        lambda x: jax.sharding.reshard(jnp.tanh(x), PartitionSpec("model", "data")), in_shardings=PartitionSpec("data")
    )
    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
    (call,) = step.lower(x).program.calls
    assert call.outputs[0].spec == (("model",), ("data",))
    code = export_call(call, mesh=explicit_mesh.abstract_mesh, platform="cpu", adds_witness=False)
    there = Mesh(np.array(jax.devices()[4:]).reshape(2, 2), ("data", "model"), axis_types=(AUTO,) * 2)
    placed = jax.device_put(x, NamedSharding(there, PartitionSpec("data")))
    (found,) = import_call(code, call, mesh=there, adds_witness=False)(placed)
    assert found.sharding == NamedSharding(there, PartitionSpec("model", "data"))
    np.testing.assert_allclose(found, np.tanh(x), rtol=1e-6)


def test_types_are_automatic_by_default():
    with jq.RemoteMesh((2,), (2, 2)) as mesh:
        assert mesh.spmd_axis_types == (AUTO, AUTO)
        assert mesh.abstract_mesh == mesh.meshes[1].abstract_mesh


def carrying_step(state, batch, reshard):
    """Three stages; the first carries a mean of what it makes, which is sharded over `model` by its type."""

    def one(mean, x):
        def loss(params):
            hidden = jnp.tanh(x @ params["first"]) - mean
            after = reshard(0.9 * mean + 0.1 * jnp.mean(hidden, axis=0))
            hidden = jq.pipeline_yield(jnp.tanh(hidden))
            hidden = jq.pipeline_yield(hidden * 2)
            return jnp.mean(hidden**2), jax.lax.stop_gradient(after)

        (value, mean), grads = jax.value_and_grad(loss, has_aux=True)(state["params"])
        return mean, (grads["first"], value)

    loop = jq.accumulate_grads(one, jq.schedules.OneFOneB(3), ("mean", "stack"), carry=state["mean"])
    mean, (first, losses) = loop(batch)
    return {"params": {"first": state["params"]["first"] - first}, "mean": mean}, losses


def test_a_carry_has_its_sharding_in_its_type(explicit_mesh):
    state = {"params": {"first": make_params()["first"]}, "mean": np.ones(8, np.float32)}
    specs = {"params": {"first": SPECS["first"]}, "mean": PartitionSpec("model")}

    def distributed(reshard):
        step = functools.partial(carrying_step, reshard=reshard)
        return explicit_mesh.distributed(step, in_shardings=(specs, PartitionSpec(None, "data")))

    found = distributed(lambda mean: jax.sharding.reshard(mean, PartitionSpec("model")))(state, make_batch())
    expected = jax.jit(functools.partial(carrying_step, reshard=lambda mean: mean))(state, make_batch())
    jax.tree.map(
        lambda left, right: np.testing.assert_allclose(left, right, 1e-5, 1e-6), jax.device_get(found), expected
    )
    assert str(found[0]["mean"].type) == "float32[8]{model}"
    with pytest.raises(LoopError, match="carry comes in sharded over model and is returned sharded over nothing"):
        distributed(lambda mean: jax.sharding.reshard(mean, PartitionSpec()))(state, make_batch())
