"""Beside data parallelism each replica multiplies its own rows; only the gradient of w is summed over the replicas."""

import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from numpy.testing import assert_array_equal

from jaxquard.errors import GemmError
from jaxquard.gemm import ALGORITHMS, dense, layer_shardings, matmul, multiply, rms_norm
from tests.few_examples import few_examples
from tests.gemm.collectives import list_collectives
from tests.gemm.meshes import compile_quickly, exact, make_mesh, place, whole_numbers

BATCH, LENGTH, IN, OUT = 16, 4, 64, 96
ROWS_AND_COLUMNS = {"axis_names": ("x", "y")}
NAMES = ("dp", "x", "y")


def value_and_gradients(**how):
    def run(x, w, dy):
        y, pull = jax.vjp(lambda x, w: matmul(x, w, **how), x, w)
        return y, *pull(dy)

    return run


def problem(batch=BATCH):
    x = whole_numbers(batch, LENGTH, IN, seed=0)
    return x, whole_numbers(IN, OUT, seed=1), whole_numbers(batch, LENGTH, OUT, seed=2)


def compiled(mesh, *, batch=BATCH, batch_axes=None, **how):
    """The compiled products of a layer, with its arguments as `layer_shardings` places them."""
    how = {"mesh": mesh, **ROWS_AND_COLUMNS, **how}
    shardings = layer_shardings(num_x_dims=3, **how)
    args = [jax.device_put(array, shardings[name]) for name, array in zip("xwy", problem(batch), strict=True)]
    return compile_quickly(value_and_gradients(batch_axes=batch_axes, **how), *args), args


def dots(text):
    """The shapes of the local products of a compiled program, with the dims that they contract."""
    found = re.findall(
        r" = (\w+\[[\d,]*\])\S* dot\(.*?(lhs_contracting_dims=\{\d+\}, rhs_contracting_dims=\{\d+\})", text
    )
    return Counter(found)


def collectives(text, num_chips):
    """The collectives by kind, bytes and groups, those of further replicas left out."""
    return Counter(
        (found.kind, found.result_bytes, tuple(tuple(group) for group in found.groups if max(group) < num_chips))
        for found in list_collectives(text)
    )


def assert_right(found, x, w, dy):
    y, dx, dw = (exact(array) for array in found)
    x, w, dy = exact(x), exact(w), exact(dy)
    assert_array_equal(y, x @ w)
    assert_array_equal(dx, dy @ w.T)
    assert_array_equal(dw, x.reshape(-1, IN).T @ dy.reshape(-1, OUT))


@pytest.mark.thin(3)
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize(
    ("stationary", "is_transposed"), [("y", False), ("x", False), ("w", False), ("w", True), ("y", True)]
)
def test_a_replica_does_what_2d_alone_does_and_one_sum(stationary, is_transposed, kind):
    """Local products and collectives are those of a 2x2 mesh with half of the batch, forward and backward."""
    how = {"stationary": stationary, "is_transposed": is_transposed, "slices": 2, "block": 2}
    mesh = jax.make_mesh((2, 2, 2), NAMES, axis_types=(kind,) * 3, devices=jax.devices()[:8])
    program, args = compiled(mesh, **how)
    alone, _ = compiled(make_mesh((2, 2)), batch=BATCH // 2, **how)
    assert dots(program.as_text()) == dots(alone.as_text()) != Counter()
    extra = collectives(program.as_text(), 4) - collectives(alone.as_text(), 4)
    (kind, sizes, _), count = next(iter(extra.items()))
    assert (len(extra), count, kind, sizes) == (1, 1, "all-reduce", (4 * IN * OUT // 4,))
    assert not collectives(alone.as_text(), 4) - collectives(program.as_text(), 4)
    summed = [found.groups for found in list_collectives(program.as_text()) if found.kind == "all-reduce"]
    assert summed == [[[0, 4], [1, 5], [2, 6], [3, 7]]]
    found = program(*args)
    assert_right(found, *args)
    shardings = layer_shardings(mesh=mesh, num_x_dims=3, **ROWS_AND_COLUMNS, **how)
    for name, array in zip("yxw", found, strict=True):
        assert array.sharding.is_equivalent_to(shardings[name], array.ndim), name


SHAPES = [
    ((2, 2, 2), NAMES),
    ((2, 1, 4), NAMES),
    ((4, 2, 1), NAMES),
    ((8, 1, 1), NAMES),
    ((2, 2, 2), ("x", "dp", "y")),
    ((2, 2, 1, 2), ("dp", "fsdp", "x", "y")),
    ((2, 2, 2, 1), ("fsdp", "x", "dp", "y")),
]


@few_examples(8)
@given(
    mesh=st.sampled_from(SHAPES),
    algorithm=st.sampled_from(list(ALGORITHMS)),
    stationary=st.sampled_from("yxw"),
    is_transposed=st.booleans(),
    is_placed=st.booleans(),
)
def test_values_and_gradients_on_any_mesh(mesh, algorithm, stationary, is_transposed, is_placed):
    mesh = make_mesh(*mesh)
    if ALGORITHMS[algorithm].is_square and mesh.shape["x"] != mesh.shape["y"]:
        algorithm = "meshslice"
    how = {"mesh": mesh, "algorithm": algorithm, "stationary": stationary, "is_transposed": is_transposed}
    args = problem()
    if is_placed:
        shardings = layer_shardings(num_x_dims=3, **ROWS_AND_COLUMNS, **how)
        args = [jax.device_put(array, shardings[name]) for name, array in zip("xwy", args, strict=True)]
    run = compile_quickly(value_and_gradients(**ROWS_AND_COLUMNS, **how), *args)
    assert_right(run(*args), *args)


@pytest.mark.thin(2)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_keeps_the_batch_sharded(algorithm):
    program, args = compiled(make_mesh((2, 2, 2), NAMES), algorithm=algorithm)
    alone, _ = compiled(make_mesh((2, 2)), batch=BATCH // 2, algorithm=algorithm)
    assert dots(program.as_text()) == dots(alone.as_text()) != Counter()
    assert_right(program(*args), *args)


def rows_of(program):
    """The largest number of rows of a local product."""
    return max(int(re.findall(r"\d+", shape)[1]) for shape, _ in dots(program.as_text()))


def forward(mesh, x, w, **how):
    return compile_quickly(lambda x, w: matmul(x, w, mesh=mesh, **ROWS_AND_COLUMNS, **how), x, w)


def test_batch_axes_under_jit():
    """All free axes that divide the first dim, unless others are named."""
    mesh, (_, w, _) = make_mesh((2, 2, 2), NAMES), problem()
    x = place(whole_numbers(16, IN, seed=0), mesh, P(("dp", "x"), "y"))
    assert rows_of(forward(mesh, x, w)) == 4
    assert rows_of(forward(mesh, x, w, batch_axes="dp")) == 4
    assert rows_of(forward(mesh, x, w, batch_axes=["dp"])) == 4
    assert rows_of(forward(mesh, x, w, batch_axes=())) == 8
    assert rows_of(forward(mesh, whole_numbers(6, IN, seed=0), w)) == 3  # 2 * 2 does not divide 6
    four = make_mesh((2, 2, 1, 2), ("dp", "fsdp", "x", "y"))
    assert rows_of(forward(four, whole_numbers(16, IN, seed=0), w)) == 4
    assert rows_of(forward(four, whole_numbers(16, IN, seed=0), w, batch_axes="fsdp")) == 8


@pytest.mark.thin(2)
@pytest.mark.parametrize(("spec", "y_spec"), [(P(("dp", "x"), "y"), P(("dp", "x"), "y")), (P("x", "y"), P("x", "y"))])
@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_batch_axes_of_placed_arrays(kind, spec, y_spec):
    mesh = jax.make_mesh((2, 2, 2), NAMES, axis_types=(kind,) * 3)
    x, w = place(whole_numbers(16, IN, seed=0), mesh, spec), place(problem()[1], mesh, P("x", "y"))
    y = matmul(x, w, mesh=mesh, **ROWS_AND_COLUMNS)
    assert y.sharding.spec == y_spec
    product = multiply(x, w, mesh=mesh, **ROWS_AND_COLUMNS)
    assert product.sharding.spec == y_spec
    for found in (y, product):
        assert_array_equal(exact(found), exact(x) @ exact(w))
    if kind is AxisType.Explicit:
        assert jax.jit(lambda x, w: matmul(x, w, mesh=mesh, **ROWS_AND_COLUMNS))(x, w).sharding.spec == y_spec


@pytest.mark.parametrize(
    ("x_spec", "w_spec", "message"),
    [
        (
            P("y", "x"),
            P("x", "y"),
            "on Explicit axes x must be sharded as the product needs it, P('x', 'y'), but is sharded as P('y', 'x'). "
            "Place it: jax.sharding.reshard(x, gemm.layer_shardings(...)['x']).",
        ),
        (P(("x", "dp"), "y"), P("x", "y"), "P(('dp', 'x'), 'y'), but is sharded as P(('x', 'dp'), 'y')."),
        (P("x", ("y", "dp")), P("x", "y"), "P('x', 'y'), but is sharded as P('x', ('y', 'dp'))."),
        (P(("dp", "x"), "y"), P(("dp", "x"), "y"), "w must be sharded as the product needs it, P('x', 'y'), but is"),
        (P(("dp", "x"), "y"), P("x", None), "but is sharded as P('x', None). Place it: jax.sharding.reshard(w, "),
        (None, None, "but is sharded as P(None, None)."),
    ],
)
def test_misplaced_explicit_inputs(x_spec, w_spec, message):
    mesh = jax.make_mesh((2, 2, 2), NAMES, axis_types=(AxisType.Explicit,) * 3)
    x, w = whole_numbers(16, IN, seed=0), problem()[1]
    if x_spec is not None:
        x, w = place(x, mesh, x_spec), place(w, mesh, w_spec)
    for run in (lambda run: run, jax.jit):
        with pytest.raises(GemmError) as error:
            run(lambda x, w: matmul(x, w, mesh=mesh, **ROWS_AND_COLUMNS))(x, w)
        assert message in str(error.value)
    with pytest.raises(GemmError, match=r"on Explicit axes (lhs|rhs) must be sharded as the product needs it"):
        multiply(x, w, mesh=mesh, **ROWS_AND_COLUMNS)


def test_a_misplaced_explicit_bias():
    mesh = jax.make_mesh((2, 2, 2), NAMES, axis_types=(AxisType.Explicit,) * 3)
    layer = dense(OUT, mesh=mesh, use_bias=True, **ROWS_AND_COLUMNS)
    params = layer.init(jax.random.key(0), IN)
    x = place(whole_numbers(16, IN, seed=0), mesh, P(("dp", "x"), "y"))
    y = layer.apply(params, x)
    whole = {**params, "b": place(params["b"], mesh, P())}
    assert_array_equal(layer.apply(whole, x), y)
    with pytest.raises(GemmError) as error:
        layer.apply({**params, "b": place(params["b"], mesh, P("x"))}, x)
    assert str(error.value) == (
        "on Explicit axes params['b'] must be sharded as the product needs it, P('y',), but is sharded as P('x',). "
        "Place it: jax.sharding.reshard(params['b'], layer.shardings()['b'])."
    )


@pytest.mark.thin(2)
@pytest.mark.parametrize("is_checked", [True, False])
def test_inside_of_a_shard_map_over_the_batch(is_checked):
    """The replicas are those of a `shard_map` around, as in a loop over stages; a product sees its own rows."""
    mesh = make_mesh((2, 2, 2), NAMES)
    x, w = jax.random.normal(jax.random.key(0), (16, IN)), jax.random.normal(jax.random.key(1), (IN, OUT)) / 8
    how = {"mesh": mesh, **ROWS_AND_COLUMNS}

    def mapped(run):
        return jax.shard_map(
            run, mesh=mesh, in_specs=(P("dp"), P()), out_specs=P("dp"), axis_names={"dp"}, check_vma=is_checked
        )

    ours = mapped(lambda x, w: jnp.sin(matmul(rms_norm(x, w[:, 0], **how), w, **how)))

    def plain(x, w):
        normed = x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-5) * w[:, 0]
        return jnp.sin(normed @ w)

    found, expected = (
        jax.value_and_grad(lambda x, w, of=of: jnp.sum(of(x, w)), argnums=(0, 1)) for of in (ours, plain)
    )
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5),
        compile_quickly(found, x, w)(x, w),
        expected(x, w),
    )
    if is_checked:
        with pytest.raises(GemmError, match=r"that checks varying axes, `multiply` has no gradients. Use `matmul`"):
            jax.jit(mapped(lambda x, w: multiply(x, w, **how)))(x, w)
    else:
        product = jax.jit(mapped(lambda x, w: multiply(x, w, **how)))(x, w)
        np.testing.assert_allclose(product, x @ w, rtol=2e-5, atol=2e-5)


def test_resharding_as_the_message_says():
    mesh = jax.make_mesh((2, 2, 2), NAMES, axis_types=(AxisType.Explicit,) * 3)
    shardings = layer_shardings(mesh=mesh, **ROWS_AND_COLUMNS)
    x, w = place(whole_numbers(16, IN, seed=0), mesh, P("y", "x")), place(problem()[1], mesh, P("x", "y"))
    y = matmul(jax.sharding.reshard(x, shardings["x"]), w, mesh=mesh, **ROWS_AND_COLUMNS)
    assert_array_equal(exact(y), exact(x) @ exact(w))


@pytest.mark.parametrize("dataflow", ["os", "ls", "rs"])
def test_multiply_beside_data_parallelism(dataflow):
    mesh = make_mesh((2, 2, 2), NAMES)
    lhs, rhs = whole_numbers(16, IN, seed=0), whole_numbers(IN, OUT, seed=1)
    how = {"mesh": mesh, "dataflow": dataflow, **ROWS_AND_COLUMNS}

    def run(lhs, rhs):
        out, pull = jax.vjp(lambda lhs, rhs: multiply(lhs, rhs, **how), lhs, rhs)
        return out, *pull(out)

    out, dlhs, drhs = (exact(found) for found in compile_quickly(run, lhs, rhs)(lhs, rhs))
    assert_array_equal(out, exact(lhs) @ exact(rhs))
    assert_array_equal(dlhs, out @ exact(rhs).T)
    assert_array_equal(drhs, exact(lhs).T @ out)
    assert multiply(lhs, rhs, **how).sharding.shard_shape((16, OUT)) == (4, OUT // 2)


@pytest.mark.slow
def test_vmap_over_a_mesh_axis():
    """`spmd_axis_name` shards the mapped dim; each replica multiplies its own examples."""
    mesh = make_mesh((2, 2, 2), NAMES)
    x, w, dy = whole_numbers(4, 8, IN, seed=0), *problem()[1:]
    layer = dense(OUT, mesh=mesh, use_bias=True, **ROWS_AND_COLUMNS)
    params, dy = {"w": w, "b": jnp.zeros(OUT)}, whole_numbers(4, 8, OUT, seed=2)
    for apply in (
        lambda params, x: matmul(x, params["w"], mesh=mesh, slices=2, block=2, **ROWS_AND_COLUMNS),
        lambda params, x: multiply(x, params["w"], mesh=mesh, **ROWS_AND_COLUMNS),
        layer.apply,
    ):
        mapped = jax.vmap(apply, (None, 0), spmd_axis_name="dp")

        def run(params, x, dy, mapped=mapped):
            y, pull = jax.vjp(mapped, params, x)
            return y, *pull(dy)

        program = compile_quickly(run, params, x, dy)
        y, grads, dx = program(params, x, dy)
        assert y.sharding.spec[0] == "dp"
        assert_array_equal(exact(y), exact(x) @ exact(w))
        assert_array_equal(exact(dx), exact(dy) @ exact(w).T)
        assert_array_equal(exact(grads["w"]), exact(x).reshape(-1, IN).T @ exact(dy).reshape(-1, OUT))
        assert_array_equal(exact(mapped(params, x)), exact(x) @ exact(w))


def test_vmap_inside_of_grad_and_grad_inside_of_vmap():
    mesh = make_mesh((2, 2, 2), NAMES)
    x, w = jax.random.normal(jax.random.key(0), (4, 8, IN)), jax.random.normal(jax.random.key(1), (IN, OUT)) / 8

    def losses(multiply, **mapping):
        loss = lambda x, w: jnp.sum(jnp.sin(multiply(x, w)))  # noqa: E731
        return lambda x, w: jax.vmap(jax.grad(loss, argnums=(0, 1)), (0, None), **mapping)(x, w)

    ours = losses(lambda x, w: matmul(x, w, mesh=mesh, **ROWS_AND_COLUMNS), spmd_axis_name="dp")
    for found, expected in zip(compile_quickly(ours, x, w)(x, w), losses(jnp.matmul)(x, w), strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


def test_the_bias_of_a_replicated_layer():
    """Its gradient is one sum of a number a feature over rows and replicas."""
    mesh = make_mesh((2, 2, 2), NAMES)
    layer = dense(OUT, mesh=mesh, use_bias=True, **ROWS_AND_COLUMNS)
    x, w, dy = problem()
    params = jax.device_put({"w": w, "b": whole_numbers(OUT, seed=3)}, layer.shardings())
    x, dy = (place(array, mesh, P(("dp", "x"), None, "y")) for array in (x, dy))

    def run(params, x, dy):
        y, pull = jax.vjp(layer.apply, params, x)
        return y, pull(dy)[0]["b"]

    program = compile_quickly(run, params, x, dy)
    y, db = program(params, x, dy)
    assert_array_equal(exact(y), exact(x) @ exact(w) + exact(params["b"]))
    assert_array_equal(exact(db), exact(dy).sum((0, 1)))
    sums = [found for found in list_collectives(program.as_text()) if found.kind == "all-reduce"]
    assert [(found.result_bytes, len(found.groups[0])) for found in sums] == [((4 * OUT // 2,), 4)]


@pytest.mark.parametrize(
    ("batch_axes", "message"),
    [
        (
            "x",
            "batch_axes must be axes of the mesh besides its rows and columns, x and y, but are 'x'. The mesh has dp.",
        ),
        (("dp", "tp"), "but are ('dp', 'tp'). The mesh has dp."),
        (3, "but are 3."),
        (("dp", "dp"), "batch_axes must be different axes, but are ('dp', 'dp')."),
    ],
)
def test_batch_axes_that_are_none(batch_axes, message):
    mesh, (x, w, _) = make_mesh((2, 2, 2), NAMES), problem()
    for attempt in (
        lambda how: matmul(x, w, **how),
        lambda how: multiply(x[0], w, **how),
        lambda how: layer_shardings(**how),
        lambda how: dense(OUT, **how),
    ):
        with pytest.raises(GemmError) as error:
            attempt({"mesh": mesh, "batch_axes": batch_axes, **ROWS_AND_COLUMNS})
        assert message in str(error.value)


def test_batch_axes_that_are_taken():
    mesh, (x, w, _) = make_mesh((2, 2, 2), NAMES), problem()
    how = {"mesh": mesh, "batch_axes": "dp", **ROWS_AND_COLUMNS}
    message = (
        r"batch_axes has 'dp', but a `shard_map` or a `vmap\(spmd_axis_name=...\)` around shards x over it already"
    )
    with pytest.raises(GemmError, match=message):
        jax.vmap(lambda x: matmul(x, w, **how), spmd_axis_name="dp")(x)
    mapped = jax.shard_map(
        lambda x: matmul(x, w, **how), mesh=mesh, in_specs=P("dp"), out_specs=P("dp"), axis_names={"dp"}
    )
    with pytest.raises(GemmError, match=message):
        jax.jit(mapped)(x)


def test_sizes_of_a_batch_shard():
    mesh, (_, w, _) = make_mesh((2, 2, 2), NAMES), problem()
    how = {"mesh": mesh, "batch_axes": "dp", **ROWS_AND_COLUMNS}
    with pytest.raises(GemmError) as error:
        matmul(whole_numbers(6, IN, seed=0), w, **how)
    assert str(error.value) == (
        "the first dim of x must be a multiple of 4 (2 rows or columns of chips share it in each of 2 shards over dp), "
        "but is 6. Pad it: the nearest that fit: 4 or 8."
    )
    with pytest.raises(GemmError) as error:
        matmul(whole_numbers(32, IN, seed=0), w, stationary="w", slices=2, block=16, **how)
    assert str(error.value).startswith(
        "the rows of x in each of 2 shards over dp (see `batch_axes`) must be a multiple of 64"
    )
    with pytest.raises(
        GemmError, match=r"M, the rows of lhs, must be a multiple of 2 \(batch_axes makes 2 shards over"
    ):
        multiply(whole_numbers(5, IN, seed=0), w, **how)
    with pytest.raises(GemmError, match=r"M, the rows of lhs in each of 2 shards over dp .* must be a multiple of 2"):
        multiply(whole_numbers(6, IN, seed=0), w, **how)
