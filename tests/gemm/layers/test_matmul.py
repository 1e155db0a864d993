"""`matmul` has the value and both gradients of `x @ w`, whatever stays where it is, and under JAX's transformations."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from numpy.testing import assert_array_equal

from jaxquard.gemm import ALGORITHMS, GemmPlan, LayerPlan, Stationary, layer_shardings, matmul, matmul_local
from tests.gemm.collectives import expected_traffic, traffic
from tests.gemm.jaxpr_dependences import all_primitives
from tests.gemm.meshes import compile_quickly, exact, make_mesh, place, whole_numbers
from tests.gemm.variants import EVERY_CASE, VARIANTS, mesh_id

FORMS = list(itertools.product("yxw", [False, True]))
BATCH, LENGTH, IN, OUT = 8, 4, 64, 96
MESHSLICE = {"slices": 2, "block": 2}


def problem(*, dtype=jnp.float32):
    x = whole_numbers(BATCH, LENGTH, IN, seed=0, dtype=dtype)
    w = whole_numbers(IN, OUT, seed=1, dtype=dtype)
    dy = whole_numbers(BATCH, LENGTH, OUT, seed=2, dtype=dtype)
    return x, w, dy


def value_and_gradients(x, w, dy, multiply):
    y, pull = jax.vjp(multiply, x, w)
    return y, *pull(dy)


def assert_right(found, x, w, dy):
    y, dx, dw = (exact(array) for array in found)
    x, w, dy = exact(x), exact(w), exact(dy)
    assert_array_equal(y, x @ w)
    assert_array_equal(dx, dy @ w.T)
    assert_array_equal(dw, x.reshape(-1, IN).T @ dy.reshape(-1, OUT))


def check(mesh_shape, name, stationary, is_transposed):
    variant, mesh = VARIANTS[name], make_mesh(mesh_shape)
    how = {"algorithm": variant.algorithm, "stationary": stationary, "is_transposed": is_transposed, **variant.options}
    x, w, dy = problem()
    shardings = layer_shardings(mesh=mesh, num_x_dims=3, **how)
    args = tuple(jax.device_put(array, shardings[name]) for name, array in (("x", x), ("w", w), ("y", dy)))
    compiled = compile_quickly(
        lambda x, w, dy: value_and_gradients(x, w, dy, lambda x, w: matmul(x, w, mesh=mesh, **how)), *args
    )
    assert_right(compiled(*args), x, w, dy)
    found = traffic(compiled.as_text(), mesh_shape)
    expected = table_1_traffic(variant, stationary, mesh_shape, is_transposed)
    assert found == expected


def table_1_traffic(variant, stationary, mesh_shape, is_transposed):
    """Table 1 as the paper writes it, transposed matrices and all: (dataflow, its M, K, N) of the three products."""
    rows, k, n = BATCH * LENGTH, IN, OUT
    table = {
        "y": (("os", (rows, k, n)), ("ls", (rows, n, k)), ("rs", (k, rows, n))),
        "x": (("ls", (rows, k, n)), ("os", (rows, n, k)), ("rs", (n, rows, k))),
        "w": (("rs", (rows, k, n)), ("ls", (k, n, rows)), ("os", (k, rows, n))),
    }
    total = {}
    for dataflow, sizes in table[stationary]:
        sizes = dict(zip("MKN", sizes, strict=True))
        moved = expected_traffic(variant, dataflow, sizes=sizes, mesh_shape=mesh_shape, is_transposed=is_transposed)
        for key, (count, sent) in moved.items():
            before = total.get(key, (0, 0))
            total[key] = before[0] + count, before[1] + sent
    return total


def few_cases():
    for number, (mesh_shape, name) in enumerate(EVERY_CASE):
        if (mesh_shape, name) == ((4, 2), "meshslice-2"):
            yield from ((mesh_shape, name, *form) for form in FORMS)
        elif mesh_shape == (2, 2) and name in ("summa", "summa-packets", "cannon"):
            # SUMMA's many broadcasts take long to compile on larger meshes.
            yield from ((mesh_shape, name, *form) for form in (("y", False), ("x", True), ("w", False)))
        elif not name.startswith("summa") and number % 3 == 0:
            yield (mesh_shape, name, *FORMS[number // 3 % len(FORMS)])


def test_the_few_cases_have_all_forms_and_algorithms():
    cases = list(few_cases())
    assert {case[2:] for case in cases} == set(FORMS)
    assert {VARIANTS[case[1]].algorithm for case in cases} == set(ALGORITHMS)


def test_forward_mode_is_refused():
    """As docs/gemm.md says; if JAX ever allows it, the page should say so."""
    x, w = small_problem()
    with pytest.raises(TypeError, match="can't apply forward-mode"):
        jax.jvp(lambda x: matmul(x, w, mesh=make_mesh((2, 2))), (x,), (x,))


@pytest.mark.thin(3)
@pytest.mark.parametrize(("mesh_shape", "name", "stationary", "is_transposed"), list(few_cases()), ids=mesh_id)
def test_value_gradients_and_traffic(mesh_shape, name, stationary, is_transposed):
    check(mesh_shape, name, stationary, is_transposed)


@pytest.mark.slow
@pytest.mark.parametrize(("mesh_shape", "name"), EVERY_CASE, ids=mesh_id)
@pytest.mark.parametrize(("stationary", "is_transposed"), FORMS)
def test_every_value_gradient_and_traffic(mesh_shape, name, stationary, is_transposed):
    check(mesh_shape, name, stationary, is_transposed)


def test_bf16_in_bf16_out():
    x, w, dy = (jnp.sign(array) for array in problem(dtype=jnp.bfloat16))
    mesh = make_mesh((4, 2))
    found = compile_quickly(
        lambda x, w, dy: value_and_gradients(x, w, dy, lambda x, w: matmul(x, w, mesh=mesh, **MESHSLICE)), x, w, dy
    )(x, w, dy)
    assert {array.dtype for array in found} == {jnp.dtype(jnp.bfloat16)}
    assert_right(found, x, w, dy)


@pytest.mark.parametrize("stationary", ["y", "x", "w"])
def test_nothing_is_transposed(stationary):
    """Neither forward nor backward: the matrix that the paper stores transposed is only sharded otherwise."""
    mesh = make_mesh((4, 2))
    jaxpr = jax.make_jaxpr(
        lambda x, w, dy: value_and_gradients(
            x, w, dy, lambda x, w: matmul(x, w, mesh=mesh, stationary=stationary, **MESHSLICE)
        )
    )(*problem())
    primitives = set(all_primitives(jaxpr.jaxpr))
    assert "dot_general" in primitives
    assert "transpose" not in primitives


def loss(x, w, mesh, **how):
    return jnp.sum(jnp.sin(matmul(x, w, mesh=mesh, **MESHSLICE, **how)))


def dense_loss(x, w):
    return jnp.sum(jnp.sin(x @ w))


def small_problem(*leading):
    key = jax.random.key(0)
    x = jax.random.normal(key, (*leading, 8, 32))
    return x, jax.random.normal(jax.random.fold_in(key, 1), (32, 32)) / 6


def run_quickly(fn, *args):
    return compile_quickly(fn, *args)(*args)


def assert_close(found, expected):
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5), found, expected)


def test_outside_jit():
    mesh, (x, w) = make_mesh((2, 2)), small_problem()
    found = jax.value_and_grad(lambda x, w: jnp.sum(jnp.sin(matmul(x, w, mesh=mesh))), argnums=(0, 1))(x, w)
    assert_close(found, jax.value_and_grad(dense_loss, argnums=(0, 1))(x, w))


def test_on_explicit_axes():
    """The default of `jax.make_mesh`."""
    mesh, (x, w) = jax.make_mesh((4, 2), ("x", "y")), small_problem()
    shardings = layer_shardings(mesh=mesh, stationary="x")
    placed = jax.device_put(x, shardings["x"]), jax.device_put(w, shardings["w"])
    ours = jax.value_and_grad(lambda x, w: loss(x, w, mesh, stationary="x"), argnums=(0, 1))
    found = run_quickly(ours, *placed)
    assert found[1][1].sharding == shardings["w"]
    assert_close(found, jax.value_and_grad(dense_loss, argnums=(0, 1))(x, w))


@pytest.mark.parametrize("stationary", ["y", "x"])
def test_under_scan_and_checkpoint(stationary):
    """Layers of one shape in a scan, each recomputed in the backward pass."""
    mesh, (x, w) = make_mesh((4, 2)), small_problem()
    stack = jnp.stack([w, w.T, -w])

    def run(multiply):
        def body(x, w):
            return jnp.tanh(multiply(x, w)), None

        return lambda x, stack: jnp.sum(jax.lax.scan(jax.checkpoint(body), x, stack)[0] ** 2)

    ours = run(lambda x, w: matmul(x, w, mesh=mesh, stationary=stationary, **MESHSLICE))
    found = run_quickly(jax.value_and_grad(ours, argnums=(0, 1)), x, stack)
    assert_close(found, jax.value_and_grad(run(jnp.matmul), argnums=(0, 1))(x, stack))


@pytest.mark.parametrize("algorithm", ["meshslice", "wang"])
def test_under_vmap(algorithm):
    mesh, (x, w) = make_mesh((4, 2)), small_problem(3)

    def total(one_loss):
        return jax.value_and_grad(lambda x, w: jnp.sum(jax.vmap(one_loss, (0, None))(x, w)), argnums=(0, 1))

    how = MESHSLICE if algorithm == "meshslice" else {}
    ours = total(lambda x, w: jnp.sum(jnp.sin(matmul(x, w, mesh=mesh, algorithm=algorithm, **how))))
    assert_close(run_quickly(ours, x, w), total(dense_loss)(x, w))


def test_second_derivatives():
    mesh, (x, w) = make_mesh((2, 2)), small_problem()

    def slope(of):
        return lambda x, w: jnp.sum(jax.grad(of, argnums=1)(x, w) ** 2)

    found = run_quickly(jax.grad(slope(lambda x, w: loss(x, w, mesh))), x, w)
    assert_close(found, jax.grad(slope(dense_loss))(x, w))


def test_other_axes_of_the_mesh_are_left_alone():
    """A third axis keeps its own share of the batch, and the gradient of w is summed over it."""
    mesh, (x, w) = make_mesh((2, 2, 2), ("data", "x", "y")), small_problem()
    x = place(x, mesh, P(("data", "x"), "y"))
    ours = jax.value_and_grad(lambda x, w: loss(x, w, mesh, axis_names=("x", "y")), argnums=(0, 1))
    found = run_quickly(ours, x, w)
    assert_close(found, jax.value_and_grad(dense_loss, argnums=(0, 1))(np.asarray(x), w))


@pytest.mark.thin(3)
@pytest.mark.parametrize("is_checked", [True, False])
@pytest.mark.parametrize("algorithm", ["meshslice", "wang", "summa"])
def test_inside_a_shard_map(algorithm, is_checked):
    """With the copies of w along the data axis: its gradient is the sum over them."""
    mesh, (x, w) = make_mesh((2, 2, 2), ("data", "x", "y")), small_problem()
    how = MESHSLICE if algorithm == "meshslice" else {}
    mapped = jax.shard_map(
        lambda x, w: jnp.sin(matmul_local(x, w, axis_names=("x", "y"), algorithm=algorithm, **how)),
        mesh=mesh,
        in_specs=(P(("data", "x"), "y"), P("x", "y")),
        out_specs=P(("data", "x"), "y"),
        check_vma=is_checked,
    )
    found = run_quickly(jax.value_and_grad(lambda x, w: jnp.sum(mapped(x, w)), argnums=(0, 1)), x, w)
    assert_close(found, jax.value_and_grad(dense_loss, argnums=(0, 1))(x, w))


def test_a_plan_says_it_all():
    mesh = make_mesh((4, 2))
    layer = LayerPlan(name="out", stationary=Stationary.X, is_transposed=True, slices=(2, 1, 4), block=1)
    plan = GemmPlan(
        algorithm="meshslice", mesh_shape=(4, 2), layers=(layer, LayerPlan(name="ff1", stationary=Stationary.Y))
    )
    x, w, dy = problem()
    for how in ({"plan": plan, "layer": "out"}, {"plan": layer}):
        compiled = compile_quickly(
            lambda x, w, dy, how=how: value_and_gradients(x, w, dy, lambda x, w: matmul(x, w, mesh=mesh, **how)),
            place(x, mesh, P("y", None, "x")),
            place(w, mesh, P("x", "y")),
            place(dy, mesh, P("y", None, "x")),
        )
        found = traffic(compiled.as_text(), (4, 2))
        gathers = sum(count for (kind, _), (count, _) in found.items() if kind == "all-gather")
        scatters = sum(count for (kind, _), (count, _) in found.items() if kind == "reduce-scatter")
        assert (gathers, scatters) == (2 + 2 * 1 + 4, 2 + 4)
