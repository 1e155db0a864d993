"""`jax.shard_map` inside an actor: with any mesh of the same axes, its collectives, and what it is nested in."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, PartitionSpec

import jaxquard as jq
from jaxquard.errors import MeshError, ShardingError

AUTO, EXPLICIT = AxisType.Auto, AxisType.Explicit
SIZE = 2
SHARDED, WHOLE = PartitionSpec("x"), PartitionSpec()


def user_meshes(kind=AUTO):
    """The meshes that a user may mean the actor's by."""
    devices = np.array(jax.devices()[:SIZE])
    return {
        "of devices": Mesh(devices, ("x",), axis_types=(kind,)),
        "of other devices": Mesh(np.array(jax.devices()[-SIZE:]), ("x",), axis_types=(kind,)),
        "abstract": AbstractMesh((SIZE,), ("x",), axis_types=(kind,)),
        "around": None,
    }


@pytest.fixture(scope="module")
def mesh():
    with jq.RemoteMesh((2,), (SIZE,), ("x",)) as mesh:
        yield mesh


# Functions of the shards of `x` (rows, 4) and of a weight (4, 4), and the same of whole arrays. A value is exchanged
# between the devices, so a mistake in its transpose shows in the gradients.


def all_to_all(x, weight):
    blocks = (x @ weight).reshape(SIZE, -1, 4)
    return lax.all_to_all(blocks, "x", 0, 0).reshape(-1, 4)


def whole_all_to_all(x, weight):
    blocks = (x @ weight).reshape(SIZE, SIZE, -1, 4)
    return blocks.swapaxes(0, 1).reshape(-1, 4)


def psum_scatter(x, weight):
    return lax.psum_scatter(x @ weight, "x", tiled=True)


def whole_psum_scatter(x, weight):
    return (x @ weight).reshape(SIZE, -1, 4).sum(0)


def scaled_index(x, weight):
    scale = 1.0 + lax.axis_index("x").astype(x.dtype)  # a literal of a type with the mesh in it
    return (x @ weight) * scale


def ppermute(x, weight):
    return lax.ppermute(x @ weight, "x", [(i, (i + 1) % SIZE) for i in range(SIZE)])


def whole_ppermute(x, weight):
    return jnp.roll((x @ weight).reshape(SIZE, -1, 4), 1, axis=0).reshape(-1, 4)


def axis_index(x, weight):
    return (x @ weight) * (1.0 + lax.axis_index("x"))


def whole_axis_index(x, weight):
    return ((x @ weight).reshape(SIZE, -1, 4) * jnp.arange(1.0, 1 + SIZE)[:, None, None]).reshape(-1, 4)


COLLECTIVES = {
    "all_to_all": (all_to_all, whole_all_to_all),
    "psum_scatter": (psum_scatter, whole_psum_scatter),
    "ppermute": (ppermute, whole_ppermute),
    "axis_index": (axis_index, whole_axis_index),
    "scaled_index": (scaled_index, whole_axis_index),
}


def in_jit(fn):
    return jax.jit(fn)


def in_checkpoint(fn):
    return jax.checkpoint(fn)


def in_scan(fn):
    def scanned(x, weight):
        total, _ = lax.scan(lambda total, _: (total + fn(x, weight), None), 0 * fn(x, weight), None, length=2)
        return total

    return scanned


def in_custom_vjp(fn):
    @jax.custom_vjp
    def custom(x, weight):
        return fn(x, weight)

    def forward(x, weight):
        return jax.vjp(fn, x, weight)

    custom.defvjp(forward, lambda pull_back, cotangent: pull_back(cotangent))
    return custom


def plain(fn):
    return fn


def loss_fn(weights, x, *, first, second):
    hidden = jq.pipeline_yield(jnp.tanh(first(x, weights["first"])))
    return jnp.sum(second(hidden, weights["second"]) ** 2)


def train_step(weights, batch, *, first, second):
    grads, losses = jq.accumulate_grads(
        lambda x: jax.value_and_grad(functools.partial(loss_fn, first=first, second=second))(weights, x)[::-1],
        jq.schedules.OneFOneB(2),
    )(batch)
    return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, weights, grads), losses


def make_args():
    random = np.random.default_rng(0)
    weights = {name: random.normal(scale=0.4, size=(4, 4)).astype(np.float32) for name in ("first", "second")}
    return weights, random.normal(size=(3, 4 * SIZE, 4)).astype(np.float32)


def expected_step(first, second):
    weights, batch = make_args()
    found = [jax.value_and_grad(functools.partial(loss_fn, first=first, second=second))(weights, x) for x in batch]
    grads = jax.tree.map(lambda *grads: sum(grads), *[grads for _, grads in found])
    return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, weights, grads), np.array([loss for loss, _ in found])


def assert_close(found, expected):
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6), found, expected
    )


def sharded(fn, mesh, *, check_vma=True):
    return jax.shard_map(fn, mesh=mesh, in_specs=(SHARDED, WHOLE), out_specs=SHARDED, check_vma=check_vma)


def check(mesh, first, second, whole_first, whole_second, **options):
    step = mesh.distributed(functools.partial(train_step, first=first, second=second), **options)
    assert_close(step(*make_args()), expected_step(whole_first, whole_second))


@pytest.mark.parametrize(
    ("names", "nested", "given", "check_vma"),
    [
        (("all_to_all", "psum_scatter"), plain, ("of devices", "abstract"), True),
        (("ppermute", "axis_index"), in_scan, ("of other devices", "around"), False),
        (("psum_scatter", "all_to_all"), in_custom_vjp, ("abstract", "of devices"), True),
        (("ppermute", "scaled_index"), plain, ("around", "abstract"), False),
        (("ppermute", "psum_scatter"), in_jit, ("of devices", "around"), True),
        (("ppermute", "all_to_all"), in_custom_vjp, ("abstract", "around"), True),
        (("all_to_all", "ppermute"), in_checkpoint, ("of devices", "around"), True),
        pytest.param(("axis_index", "ppermute"), in_checkpoint, ("around", "abstract"), True, marks=pytest.mark.slow),
        pytest.param(("all_to_all", "ppermute"), in_jit, ("of devices", "of devices"), False, marks=pytest.mark.slow),
        pytest.param(("all_to_all", "ppermute"), in_scan, ("abstract", "abstract"), True, marks=pytest.mark.slow),
        pytest.param(
            ("psum_scatter", "axis_index"), in_custom_vjp, ("around", "around"), False, marks=pytest.mark.slow
        ),
        pytest.param(
            ("psum_scatter", "all_to_all"), in_checkpoint, ("of devices", "abstract"), False, marks=pytest.mark.slow
        ),
    ],
)
def test_collectives(mesh, names, nested, given, check_vma):
    (first, whole_first), (second, whole_second) = (COLLECTIVES[name] for name in names)
    meshes = user_meshes()
    check(
        mesh,
        nested(sharded(first, meshes[given[0]], check_vma=check_vma)),
        nested(sharded(second, meshes[given[1]], check_vma=check_vma)),
        nested(whole_first),
        nested(whole_second),
        in_shardings=(None, PartitionSpec(None, "x")),
    )


@pytest.mark.parametrize("given", ["abstract", pytest.param("of devices", marks=pytest.mark.slow)])
def test_explicit_axes(given):
    """The types of arguments say how they are sharded, so `in_specs` may be left out."""
    theirs = user_meshes(EXPLICIT)[given]

    def infer(fn, mesh):
        return jax.shard_map(fn, mesh=mesh, out_specs=SHARDED)

    with jq.RemoteMesh((2,), (SIZE,), ("x",), spmd_axis_types=EXPLICIT) as mesh:
        check(
            mesh,
            infer(all_to_all, theirs),
            infer(ppermute, theirs),
            whole_all_to_all,
            whole_ppermute,
            in_shardings=(None, PartitionSpec(None, "x")),
        )


@pytest.mark.parametrize("given", [None, "abstract"])
def test_ragged_all_to_all_on_a_platform_without_it(mesh, given):
    def exchange(x, sizes):
        return lax.ragged_all_to_all(x, jnp.zeros_like(x), 0 * sizes, sizes, 0 * sizes, sizes, axis_name="x")

    @mesh.distributed
    def step(x, sizes):
        run = jax.shard_map(
            exchange, mesh=given and user_meshes()[given], in_specs=(SHARDED, WHOLE), out_specs=SHARDED, check_vma=False
        )
        return jax.jit(run)(x, sizes)

    with pytest.raises(MeshError) as caught:
        step(np.ones((8, 2), np.float32), np.ones(SIZE, np.int32))
    assert "uses jax.lax.ragged_all_to_all, which XLA has not on cpu. Exchange blocks of one size with" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("theirs", "named"),
    [
        (lambda: Mesh(np.array(jax.devices()[:SIZE]), ("model",)), "Mesh('model': 2"),
        (lambda: AbstractMesh((4,), ("x",), axis_types=(AUTO,)), "AbstractMesh('x': 4"),
        (lambda: user_meshes(EXPLICIT)["of devices"], "axis_types=(Explicit,)"),
    ],
    ids=["name", "size", "type"],
)
def test_a_mesh_of_other_axes(mesh, theirs, named):
    specs = PartitionSpec(theirs().axis_names[0])
    step = mesh.distributed(
        lambda x: jax.shard_map(lambda x: 2 * x, mesh=theirs(), in_specs=specs, out_specs=specs)(x),
    )
    with pytest.raises(ShardingError) as caught:
        step(np.ones((8, 4), np.float32))
    message = str(caught.value)
    assert "a jax.shard_map in the step is given " in message
    assert named in message
    assert "but the actors' mesh is 'x': 2, axis_types=(Auto)." in message
