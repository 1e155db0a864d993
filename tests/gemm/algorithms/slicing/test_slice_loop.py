"""Many slices run in a loop: the same numbers as unrolled and as numpy, and a program that does not grow with them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from jaxquard.gemm import multiply
from jaxquard.gemm.algorithms.slicing import slice_loop
from tests.gemm.jaxpr_dependences import all_primitives
from tests.gemm.meshes import MESHES, compile_quickly, exact, make_mesh, whole_numbers

any_loop = given(
    mesh_shape=st.sampled_from(MESHES),
    dataflow=st.sampled_from(["os", "ls", "rs"]),
    split_for_overlap=st.booleans(),
    slices=st.integers(9, 20),
    block=st.integers(1, 3),
    pieces=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
)


def size_matrices(*, mesh_shape, dataflow, slices, block, pieces):
    sliced = {"os": 1, "ls": 2, "rs": 0}[dataflow]
    return [max(mesh_shape) * count * (slices * block if dim == sliced else 1) for dim, count in enumerate(pieces)]


@pytest.mark.quick
@any_loop
@settings(max_examples=4)
def test_a_loop_multiplies(**case):
    check(**case)


@pytest.mark.slow
@any_loop
@settings(max_examples=100)
def test_any_loop_multiplies(**case):
    check(**case)


def check(*, mesh_shape, dataflow, split_for_overlap, slices, block, pieces):
    m, k, n = size_matrices(mesh_shape=mesh_shape, dataflow=dataflow, slices=slices, block=block, pieces=pieces)
    lhs, rhs = whole_numbers(m, k, seed=0), whole_numbers(k, n, seed=1)
    how = {"dataflow": dataflow, "slices": slices, "block": block, "split_for_overlap": split_for_overlap}
    run = compile_quickly(lambda lhs, rhs: multiply(lhs, rhs, mesh=make_mesh(mesh_shape), **how), lhs, rhs)
    assert_array_equal(exact(run(lhs, rhs)), exact(lhs) @ exact(rhs))


@pytest.mark.thin(6)
@pytest.mark.parametrize("split_for_overlap", [False, True])
@pytest.mark.parametrize("dataflow", ["os", "ls", "rs"])
@pytest.mark.parametrize("slices", [9, 12])
def test_a_loop_gives_the_bits_of_unrolled_slices(dataflow, split_for_overlap, slices, monkeypatch):
    """On matrices whose sums round: the order of sums is the same."""
    rng = np.random.default_rng(0)
    lhs, rhs = (jnp.asarray(rng.normal(size=(144, 144)), jnp.bfloat16) for _ in range(2))
    how = {"dataflow": dataflow, "slices": slices, "block": 2 if slices == 9 else 1}
    size = 8 * slices * how["block"]
    lhs, rhs = lhs[:size, :size], rhs[:size, :size]

    def run():
        mesh = make_mesh((4, 2))
        fn = jax.jit(lambda lhs, rhs: multiply(lhs, rhs, mesh=mesh, split_for_overlap=split_for_overlap, **how))
        traced = fn.trace(lhs, rhs)
        return traced.lower().compile()(lhs, rhs), "scan" in set(all_primitives(traced.jaxpr.jaxpr))

    looped, has_loop = run()
    monkeypatch.setattr(slice_loop, "MAX_UNROLLED", slices)
    unrolled, has_unrolled_loop = run()
    assert (has_loop, has_unrolled_loop) == (True, False)
    assert_array_equal(exact(looped), exact(unrolled))


@pytest.mark.thin(6)
@pytest.mark.parametrize("split_for_overlap", [False, True])
@pytest.mark.parametrize("dataflow", ["os", "ls", "rs"])
def test_a_loop_has_gradients(dataflow, split_for_overlap):
    lhs, rhs, weights = (whole_numbers(48, 48, seed=seed) for seed in range(3))
    how = {"dataflow": dataflow, "slices": 12, "block": 1, "split_for_overlap": split_for_overlap}

    def loss(lhs, rhs):
        return jnp.sum(weights * multiply(lhs, rhs, mesh=make_mesh((4, 2)), **how))

    lhs_gradient, rhs_gradient = compile_quickly(jax.grad(loss, argnums=(0, 1)), lhs, rhs)(lhs, rhs)
    assert_array_equal(exact(lhs_gradient), exact(weights) @ exact(rhs).T)
    assert_array_equal(exact(rhs_gradient), exact(lhs).T @ exact(weights))


@pytest.mark.thin(3)
@pytest.mark.parametrize("split_for_overlap", [False, True])
@pytest.mark.parametrize("dataflow", ["os", "ls", "rs"])
def test_the_program_does_not_grow_with_the_slices(dataflow, split_for_overlap):
    matrix = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)

    def num_lines(slices):
        how = {"dataflow": dataflow, "slices": slices, "block": 1, "split_for_overlap": split_for_overlap}
        run = jax.jit(lambda lhs, rhs: multiply(lhs, rhs, mesh=make_mesh((4, 2)), **how))
        return len(run.lower(matrix, matrix).as_text().splitlines())

    assert num_lines(64) == pytest.approx(num_lines(16), rel=0.05)


@pytest.mark.thin(3)
@pytest.mark.parametrize("slices", [1, 2, 3, 8, 9, 10, 11, 64])
def test_every_step_runs_once_and_in_order(slices):
    def step(s, carry):
        seen, last = carry
        return seen.at[s].add(1), jnp.where(last == s - 1, s, -100)

    seen, last = slice_loop.run_slices(step, (jnp.zeros(slices, int), jnp.asarray(-1)), slices=slices)
    assert_array_equal(seen, [1] * (slices - 1) + [0])
    assert last == slices - 2
