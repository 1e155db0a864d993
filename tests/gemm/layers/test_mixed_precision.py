"""Dtypes of layers: bf16 over float32 parameters, results that are wider than the matrices, fp8, and precision."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from numpy.testing import assert_array_equal

from jaxquard.errors import GemmError
from jaxquard.gemm import ALGORITHMS, LayerPlan, Stationary, dense, layer_shardings, matmul, matmul_local, multiply
from tests.gemm.collectives import list_collectives
from tests.gemm.meshes import compile_quickly, exact, make_mesh, whole_numbers
from tests.gemm.variants import VARIANTS

MESH = (2, 2)
FP8 = ["float8_e4m3fn", "float8_e5m2"]


def ones(*shape, dtype=jnp.float32):
    return jnp.ones(shape, dtype)


def test_bf16_products_over_float32_parameters():
    """As Flax's `dtype`: parameters and their gradients stay float32, the product and its transfers are bf16."""
    mesh = make_mesh((2, 2, 2), ("dp", "x", "y"))
    layer = dense(32, mesh=mesh, axis_names=("x", "y"), dtype=jnp.bfloat16, use_bias=True, slices=2, block=2)
    params = layer.init(jax.random.key(0), 16)
    x, dy = jax.random.normal(jax.random.key(1), (8, 16)), jax.random.normal(jax.random.key(2), (8, 32), jnp.bfloat16)

    def plain(params, x):
        rounded = {name: param.astype(jnp.bfloat16) for name, param in params.items()}
        return x.astype(jnp.bfloat16) @ rounded["w"] + rounded["b"]

    def run(apply):
        def both(params, x, dy):
            y, pull = jax.vjp(apply, params, x)
            return y, *pull(dy)

        return both

    lowered = jax.jit(run(layer.apply)).lower(params, x, dy)
    found = lowered.compile()(params, x, dy)
    y, grads, dx = found
    assert (y.dtype, grads["w"].dtype, grads["b"].dtype, dx.dtype) == (jnp.bfloat16, *["float32"] * 3)
    jax.tree.map(
        lambda ours, theirs: np.testing.assert_allclose(exact(ours), exact(theirs), rtol=0.03, atol=0.06),
        found,
        run(plain)(params, x, dy),
    )
    gathered = re.findall(r"all_gather.*?-> tensor<\w+x(\w+)>", lowered.as_text())
    assert set(gathered) == {"bf16"}


@pytest.mark.thin(6)
@pytest.mark.parametrize("name", [name for name in VARIANTS if VARIANTS[name].fits(MESH)])
@pytest.mark.parametrize("dataflow", ["os", "ls", "rs"])
def test_a_result_wider_than_the_matrices(name, dataflow):
    """Neither 514 nor 257, which each chip adds to it, is a bf16 number: nothing is rounded on the way."""
    variant, mesh = VARIANTS[name], make_mesh(MESH)
    lhs, rhs = ones(16, 64, dtype=jnp.bfloat16), ones(64, 16, dtype=jnp.bfloat16)
    lhs = lhs.at[:, (0, 32)].set(226)
    how = {"mesh": mesh, "algorithm": variant.algorithm, "dataflow": dataflow, **variant.options}

    def run(lhs, rhs):
        wide, narrow = (multiply(lhs, rhs, preferred_element_type=dtype, **how) for dtype in ("float32", None))
        return wide, narrow

    wide, narrow = compile_quickly(run, lhs, rhs)(lhs, rhs)
    assert (wide.dtype, narrow.dtype) == (jnp.float32, jnp.bfloat16)
    assert_array_equal(exact(wide), 514)
    assert_array_equal(exact(narrow), 512)


@pytest.mark.parametrize("stationary", ["y", "x", "w"])
def test_gradients_have_the_dtypes_of_their_matrices(stationary):
    """y is float32; the gradients are those of x and w, summed in float32 over chips and replicas, rounded once."""
    mesh = make_mesh((2, 2, 2), ("dp", "x", "y"))
    x = whole_numbers(16, 32, seed=0, largest=2, dtype=jnp.bfloat16)
    w = whole_numbers(32, 32, seed=1, largest=2, dtype=jnp.bfloat16)
    dy = whole_numbers(16, 32, seed=2, largest=1)

    def run(x, w, dy):
        how = {"mesh": mesh, "axis_names": ("x", "y"), "stationary": stationary}
        y, pull = jax.vjp(lambda x, w: matmul(x, w, preferred_element_type=jnp.float32, **how), x, w)
        return y, *pull(dy)

    program = compile_quickly(run, x, w, dy)
    y, dx, dw = program(x, w, dy)
    assert (y.dtype, dx.dtype, dw.dtype) == (jnp.float32, jnp.bfloat16, jnp.bfloat16)
    assert_array_equal(exact(y), exact(x) @ exact(w))
    assert_array_equal(exact(dx), exact(jnp.asarray(exact(dy) @ exact(w).T, jnp.bfloat16)))
    assert_array_equal(exact(dw), exact(jnp.asarray(exact(x).T @ exact(dy), jnp.bfloat16)))


@pytest.mark.thin(6)
@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_fp8_products(dtype, algorithm):
    mesh = make_mesh(MESH)
    x, w = (whole_numbers(16, 16, seed=seed, largest=2).astype(dtype) for seed in (0, 1))
    how = {"mesh": mesh, "algorithm": algorithm}
    for result in (jnp.float32, jnp.bfloat16):

        def run(x, w, result=result):
            y, pull = jax.vjp(lambda x, w: matmul(x, w, preferred_element_type=result, **how), x, w)
            return y, *pull(jnp.ones_like(y) / 16)

        y, dx, dw = compile_quickly(run, x, w)(x, w)
        assert (y.dtype, dx.dtype, dw.dtype) == (result, dtype, dtype)
        assert_array_equal(exact(y), exact(x) @ exact(w))
        np.testing.assert_allclose(exact(dx), exact(w).sum(1)[None].repeat(16, 0) / 16, rtol=0.13, atol=1e-2)


@pytest.mark.parametrize("dtype", FP8)
def test_fp8_wants_a_result(dtype):
    x = ones(8, 8).astype(dtype)
    message = f"products of {dtype} are summed and sent in a wider dtype, but none is named. Name it: preferred_element"
    for attempt in (
        lambda: matmul(x, x, mesh=make_mesh(MESH)),
        lambda: multiply(x, x, mesh=make_mesh(MESH)),
        lambda: dense(8, mesh=make_mesh(MESH), dtype=dtype).apply({"w": ones(8, 8)}, ones(8, 8)),
    ):
        with pytest.raises(GemmError, match=message):
            attempt()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"precision": "higher"}, "precision must be what `jax.lax.dot_general` takes, such as 'highest' or"),
        ({"precision": 3}, "but is 3."),
        ({"preferred_element_type": "int32"}, "preferred_element_type must be a floating dtype of 16 bits or more"),
        ({"preferred_element_type": "float8_e5m2"}, "such as jnp.float32, but is 'float8_e5m2'."),
        ({"preferred_element_type": "floot"}, "but is 'floot'."),
    ],
)
def test_arithmetic_that_there_is_none(how, message):
    x = ones(8, 8)
    for attempt in (matmul, multiply):
        with pytest.raises(GemmError) as error:
            attempt(x, x, mesh=make_mesh(MESH), **how)
        assert message in str(error.value)
    with pytest.raises(GemmError) as error:
        dense(8, **how)
    assert message in str(error.value)


def test_dtypes_of_a_layer_that_are_none():
    with pytest.raises(GemmError, match="dtype of the layer must be a floating one, but is 'int8'"):
        dense(8, dtype="int8")
    mixed = dense(8, mesh=make_mesh(MESH))
    with pytest.raises(GemmError, match="x and w must have one floating dtype, but have bfloat16 and float32"):
        mixed.apply({"w": ones(8, 8)}, ones(8, 8, dtype=jnp.bfloat16))


@pytest.mark.parametrize("precision", ["highest", jax.lax.Precision.HIGH, ("default", "highest"), ["high", "high"]])
def test_precision_reaches_every_product(precision):
    """Of a plan, too: it says nothing of it."""
    mesh, x, w = make_mesh(MESH), ones(8, 16), ones(16, 16)
    plan = LayerPlan(name="out", stationary=Stationary.W, slices=(2, 2, 2), block=2)
    both = P("x", "y")
    mapped = jax.shard_map(
        lambda x, w: matmul_local(x, w, axis_names=("x", "y"), precision=precision),
        mesh=mesh, in_specs=(both, both), out_specs=both,
    )  # fmt: skip
    for run in (
        lambda x, w: matmul(x, w, mesh=mesh, plan=plan, precision=precision),
        lambda x, w: multiply(x, w, mesh=mesh, dataflow="rs", precision=precision),
        lambda x, w: dense(16, mesh=mesh, precision=precision).apply({"w": w}, x),
        mapped,
    ):
        text = jax.jit(jax.grad(lambda x, w, run=run: jnp.sum(run(x, w)), argnums=(0, 1))).lower(x, w).as_text()
        found = re.findall(r"dot_general.*precision = \[(\w+), (\w+)\]", text)
        assert found
        words = {"highest": "HIGHEST", "default": "DEFAULT", "high": "HIGH", jax.lax.Precision.HIGH: "HIGH"}
        pair = precision if isinstance(precision, tuple | list) else (precision, precision)
        assert {tuple(sorted(each)) for each in found} == {tuple(sorted(words[word] for word in pair))}


def test_a_pair_of_precisions_stays_with_its_matrices():
    """RS is LS in a mirror, left and right exchanged; so are their precisions, back and forth."""
    mesh, x, w = make_mesh(MESH), ones(8, 16), ones(16, 32)
    for dataflow in ("os", "ls", "rs"):
        run = jax.jit(lambda x, w, d=dataflow: multiply(x, w, mesh=mesh, dataflow=d, precision=("default", "highest")))
        assert re.findall(r"precision = \[(\w+), (\w+)\]", run.lower(x, w).as_text()) == [("DEFAULT", "HIGHEST")]


@pytest.mark.thin(3)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("stationary", ["y", "x", "w"])
def test_heads_are_split_on_each_chip(stationary, kind):
    """A fused projection of queries, keys and values, head by head: splitting and attending sends nothing."""
    mesh = jax.make_mesh((2, 2, 2), ("dp", "x", "y"), axis_types=(kind,) * 3)
    heads, head_dim, width = 4, 4, 16
    how = {"mesh": mesh, "axis_names": ("x", "y"), "stationary": stationary}
    layer = dense((heads, 3, head_dim), use_bias=True, slices=2, block=2, **how)
    params = layer.init(jax.random.key(0), width)
    assert {name: param.shape for name, param in params.items()} == {"w": (width, 4, 3, 4), "b": (4, 3, 4)}
    assert {name: param.sharding for name, param in params.items()} == layer.shardings()
    x = jax.random.normal(jax.random.key(1), (8, 8, width))
    x = jax.device_put(x, layer_shardings(num_x_dims=3, **how)["x"])

    def attend(qkv):
        query, key, value = (qkv[:, :, :, part] for part in range(3))
        weights = jax.nn.softmax(jnp.einsum("bqhd,bshd->bhqs", query, key))
        return jnp.einsum("bhqs,bshd->bqhd", weights, value)

    def loss(params, x):
        return jnp.sum(attend(layer.apply(params, x)) ** 2, axis=(1, 2, 3))

    def plain_loss(params, x):
        return jnp.sum(attend(jnp.einsum("bsk,khnd->bshnd", x, params["w"]) + params["b"]) ** 2, axis=(1, 2, 3))

    alone = compile_quickly(layer.apply, params, x)
    whole = compile_quickly(lambda params, x: attend(layer.apply(params, x)), params, x)
    kinds = [sorted(found.kind for found in list_collectives(program.as_text())) for program in (alone, whole)]
    assert kinds[0] == kinds[1] != []
    assert whole(params, x).sharding.spec[2] == "y"
    gradient, plain_gradient = (
        jax.jit(jax.grad(lambda params, x, of=of: jnp.sum(of(params, x)), argnums=(0, 1))) for of in (loss, plain_loss)
    )
    whole_params, whole_x = jax.tree.map(np.asarray, (params, x))
    jax.tree.map(
        lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5),
        gradient(params, x),
        plain_gradient(whole_params, whole_x),
    )


def test_dims_of_features_that_do_not_fit():
    mesh = make_mesh((4, 2))
    with pytest.raises(
        GemmError, match=r"the first dim of features must be a multiple of 2 .* nearest that fit: 2 or 4"
    ):
        dense((3, 8), mesh=mesh).init(jax.random.key(0), 8)
    layer = dense((3, 8), mesh=mesh)
    with pytest.raises(GemmError, match="the first dim of features must be a multiple of 2"):
        layer.apply({"w": ones(8, 3, 8)}, ones(8, 8))
    with pytest.raises(GemmError, match=r"the layer has \(3, 8\) features, but params\['w'\] is \(8, 24\)"):
        layer.apply({"w": ones(8, 24)}, ones(8, 8))
    with pytest.raises(GemmError, match=r"each of features must be a whole number of 1 or more, but is 0 in \(4, 0\)"):
        dense((4, 0))
    with pytest.raises(GemmError, match=r"features must be one number or more, but is \(\)"):
        dense(())
    assert dense([4, 8]) == dense((4, 8))
