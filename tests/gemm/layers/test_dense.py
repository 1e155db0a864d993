"""A dense layer trains as `x @ w + b`, and its parameters are as the user wrote them, whatever the plan."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxquard.errors import GemmError
from jaxquard.gemm import (
    FcLayer,
    GemmProblem,
    LayerPlan,
    Stationary,
    autotune,
    dense,
    layer_shardings,
    matmul,
    multiply,
)
from tests.gemm.meshes import make_mesh, place
from tests.gemm.tune_by_paper import tune_by_paper


@pytest.mark.parametrize(
    ("stationary", "is_transposed", "w_spec", "b_spec"),
    [
        ("y", False, P("x", "y"), P("y")),
        ("x", False, P("y", "x"), P("y")),
        ("w", False, P("x", "y"), P("y")),
        ("x", True, P("x", "y"), P("x")),
    ],
)
def test_parameters_are_as_written(stationary, is_transposed, w_spec, b_spec):
    layer = dense(96, mesh=make_mesh((4, 2)), stationary=stationary, is_transposed=is_transposed, use_bias=True)
    params = layer.init(jax.random.key(0), 64)
    same = dense(96, mesh=make_mesh((2, 4)), use_bias=True).init(jax.random.key(0), 64)
    assert {name: param.shape for name, param in params.items()} == {"w": (64, 96), "b": (96,)}
    assert (params["w"].sharding.spec, params["b"].sharding.spec) == (w_spec, b_spec)
    jax.tree.map(lambda one, other: np.testing.assert_array_equal(one, other), params, same)
    assert 0.9 < np.std(params["w"]) * 8 < 1.1


@pytest.mark.parametrize("kept", [Stationary.Y, Stationary.X])
def test_it_trains_as_a_plain_layer(kept):
    """Weight gradients reach the user; in the authors' code they never do. A 4x2 mesh, on which their layers fail."""
    mesh = make_mesh((4, 2))
    layer = dense(32, mesh=mesh, plan=LayerPlan(name="out", stationary=kept, slices=(2, 2, 2), block=2), use_bias=True)
    params = layer.init(jax.random.key(0), 32)
    draw = np.random.default_rng(0)
    x, target = (place(draw.normal(size=(8, 2, 32)).astype(np.float32), mesh, P("x", None, "y")) for _ in range(2))

    def step_with(apply):
        def loss(params):
            return jnp.mean((apply(params, x) - target) ** 2)

        @jax.jit
        def step(params):
            value, grads = jax.value_and_grad(loss)(params)
            return value, jax.tree.map(lambda param, grad: param - 0.5 * grad, params, grads)

        return step

    ours, plain = step_with(layer.apply), step_with(lambda params, x: x @ params["w"] + params["b"])
    our_params, plain_params = params, params
    for _ in range(4):
        our_loss, our_params = ours(our_params)
        plain_loss, plain_params = plain(plain_params)
        np.testing.assert_allclose(our_loss, plain_loss, rtol=1e-6)
    for name, param in our_params.items():
        assert not np.allclose(param, params[name], atol=1e-3)
        np.testing.assert_allclose(param, plain_params[name], rtol=1e-5, atol=1e-6)
        assert param.sharding == layer.shardings()[name]


def test_init_under_jit():
    layer = dense(96, mesh=make_mesh((4, 2)))
    params = jax.jit(lambda key: layer.init(key, 64, dtype=jnp.bfloat16))(jax.random.key(0))
    assert params["w"].dtype == jnp.bfloat16
    assert params["w"].sharding.spec == P("x", "y")


@pytest.mark.thin(2)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_the_mesh_that_is_set(kind):
    """A layer by a tuning, without a word of the mesh, is the same as with it; inside and outside of `jit`."""
    mesh = jax.make_mesh((4, 2), ("x", "y"), axis_types=(kind, kind))
    problem = GemmProblem(layers=(FcLayer(name="fc", in_features=32, out_features=64),), num_rows=16)
    tuning = tune_by_paper(problem, num_chips=8, mesh_shape=(4, 2))
    layer, on_mesh = dense(64, plan=tuning, use_bias=True), dense(64, plan=tuning, use_bias=True, mesh=mesh)
    x = place(np.random.default_rng(0).normal(size=(16, 32)).astype(np.float32), mesh, P("x", "y"))
    with jax.set_mesh(mesh):
        assert layer.shardings() == on_mesh.shardings()
        assert layer_shardings(plan=tuning) == layer_shardings(plan=tuning, mesh=mesh)
        params = layer.init(jax.random.key(0), 32)
        traced = jax.jit(lambda key: layer.init(key, 32))(jax.random.key(0))
        for name, param in on_mesh.init(jax.random.key(0), 32).items():
            for found in (params[name], traced[name]):
                np.testing.assert_array_equal(found, param)
                assert found.sharding == param.sharding == layer.shardings()[name]
        expected = np.asarray(x) @ np.asarray(params["w"])
        for run in (lambda run: run, jax.jit):
            for found in (
                run(layer.apply)(params, x),
                run(lambda x, w: matmul(x, w, plan=tuning))(x, params["w"]),
                run(multiply)(x, place(params["w"], mesh, P("x", "y"))),
            ):
                np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
        grads = jax.jit(jax.grad(lambda params: jnp.sum(layer.apply(params, x))))(params)
    np.testing.assert_allclose(grads["w"], np.asarray(x).sum(0)[:, None].repeat(64, 1), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(grads["b"], 16)


def test_a_set_mesh_that_does_not_fit_the_plan():
    problem = GemmProblem(layers=(FcLayer(name="fc", in_features=32, out_features=64),), num_rows=16)
    layer = dense(64, plan=autotune(problem, num_chips=8, mesh_shape=(4, 2)))
    with jax.set_mesh(make_mesh((2, 4))):
        with pytest.raises(GemmError, match="the plan is for a 4x2 mesh, but the mesh is 2x4"):
            layer.init(jax.random.key(0), 32)
        with pytest.raises(GemmError, match="the plan is for a 4x2 mesh, but the mesh is 2x4"):
            dense(64, plan=layer.plan)
