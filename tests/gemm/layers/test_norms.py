"""Norms over sharded features equal plain ones, and send two numbers a row and the gradients of their parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxquard.errors import GemmError
from jaxquard.gemm import layer_norm, layer_shardings, rms_norm
from tests.gemm.collectives import list_collectives
from tests.gemm.meshes import compile_quickly, make_mesh, place

BATCH, LENGTH, FEATURES = 8, 4, 16


def plain_layer_norm(x, scale, bias):
    centered = x - jnp.mean(x, axis=-1, keepdims=True)
    return centered * jax.lax.rsqrt(jnp.mean(centered**2, axis=-1, keepdims=True) + 1e-5) * scale + bias


def plain_rms_norm(x, scale):
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-5) * scale


def value_and_gradients(norm):
    def run(dy, *args):
        y, pull = jax.vjp(norm, *args)
        return y, *pull(dy)

    return run


def problem(num_vectors):
    keys = jax.random.split(jax.random.key(0), 4)
    x, dy = (jax.random.normal(key, (BATCH, LENGTH, FEATURES)) for key in keys[:2])
    return dy, 3 + 2 * x, *(jax.random.normal(key, (FEATURES,)) for key in keys[2 : 2 + num_vectors])


CASES = {"layer": (layer_norm, plain_layer_norm, 2), "rms": (rms_norm, plain_rms_norm, 1)}


@pytest.mark.thin(3)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("stationary", ["y", "w"])
@pytest.mark.parametrize("name", CASES)
def test_a_norm_sends_its_own_small_sums(name, stationary, kind):
    norm, plain, num_vectors = CASES[name]
    mesh = jax.make_mesh((2, 2, 2), ("dp", "x", "y"), axis_types=(kind,) * 3)
    how = {"mesh": mesh, "axis_names": ("x", "y"), "stationary": stationary}
    x_sharding = layer_shardings(num_x_dims=3, **how)["x"]
    dy, x, *vectors = problem(num_vectors)
    args = [jax.device_put(array, x_sharding) for array in (dy, x)]
    args += [place(vector, mesh, P(x_sharding.spec[2])) for vector in vectors]
    program = compile_quickly(value_and_gradients(lambda *args: norm(*args, **how)), *args)
    found = program(*args)
    for ours, theirs in zip(found, value_and_gradients(plain)(dy, x, *vectors), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert found[0].sharding.is_equivalent_to(x_sharding, 3)
    rows = 4 * num_vectors * BATCH * LENGTH // 4  # as many numbers a row as there are vectors
    parameters = 4 * num_vectors * FEATURES // 2
    sums = sorted((each.kind, each.result_bytes, len(each.groups[0])) for each in list_collectives(program.as_text()))
    assert sums == sorted([("all-reduce", (rows,), 2)] * 2 + [("all-reduce", (parameters,), 4)])


@pytest.mark.slow
def test_norms_in_bf16_and_without_bias():
    mesh = make_mesh((2, 2))
    dy, x, scale = problem(1)
    x = x.astype(jnp.bfloat16)
    y = layer_norm(x, scale, mesh=mesh)
    assert y.dtype == jnp.bfloat16
    expected = plain_layer_norm(x.astype(jnp.float32), scale, 0)
    np.testing.assert_allclose(y.astype(jnp.float32), expected, rtol=1e-2, atol=1e-2)
    gradient = jax.grad(lambda scale: jnp.sum(layer_norm(x, scale, mesh=mesh) * dy))(scale)
    assert gradient.dtype == jnp.float32


@pytest.mark.parametrize("algorithm", ["1d_tp", "fsdp"])
def test_norms_of_one_dimensional_layers(algorithm):
    """Features or rows are whole, and nothing is summed over them."""
    mesh = make_mesh((2, 2))
    dy, x, scale, bias = problem(2)
    ours = lambda x, scale, bias: layer_norm(x, scale, bias, mesh=mesh, algorithm=algorithm)  # noqa: E731
    program = compile_quickly(value_and_gradients(ours), dy, x, scale, bias)
    for one, other in zip(
        program(dy, x, scale, bias), value_and_gradients(plain_layer_norm)(dy, x, scale, bias), strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_norms_under_vmap_over_a_mesh_axis():
    mesh = make_mesh((2, 2, 2), ("dp", "x", "y"))
    _, x, scale = problem(1)
    how = {"mesh": mesh, "axis_names": ("x", "y")}
    ours = jax.vmap(lambda x, scale: rms_norm(x, scale, **how), (0, None), spmd_axis_name="dp")
    found = compile_quickly(jax.grad(lambda *args: jnp.sum(jnp.sin(ours(*args))), argnums=(0, 1)), x, scale)(x, scale)
    expected = jax.grad(lambda *args: jnp.sum(jnp.sin(plain_rms_norm(*args))), argnums=(0, 1))(x, scale)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5), found, expected)


@pytest.mark.parametrize(
    ("x", "scale", "message"),
    [
        (jnp.ones(16), jnp.ones(16), r"x must be a floating array of 2 dims or more, but is float32\[16\]"),
        (jnp.ones((4, 16), int), jnp.ones(16), r"but is int32\[4, 16\]"),
        ([1.0], jnp.ones(16), "but is list"),
        (jnp.ones((4, 16)), jnp.ones(8), r"scale must have one number for each of the 16 features of x, but is \(8,\)"),
        (jnp.ones((4, 16)), 1.0, "but is float"),
        (jnp.ones((3, 16)), jnp.ones(16), "the first dim of x must be a multiple of 2 .*nearest that fit: 2 or 4"),
        (jnp.ones((4, 15)), jnp.ones(15), "the last dim of x must be a multiple of 2 .*nearest that fit: 14 or 16"),
    ],
)
def test_norms_that_do_not_fit(x, scale, message):
    for norm in (layer_norm, rms_norm):
        with pytest.raises(GemmError, match=message):
            norm(x, scale, mesh=make_mesh((2, 2)))
