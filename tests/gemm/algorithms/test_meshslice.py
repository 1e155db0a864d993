"""MeshSlice's loop is pipelined in every dataflow, holds two slices at most, and is Collective with one slice."""

import itertools

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from jaxquard.gemm import multiply
from tests.gemm.jaxpr_dependences import shard_map_body, waits_for
from tests.gemm.meshes import MESHES, compile_quickly, exact, make_mesh, whole_numbers

SLICES = 4


def trace(dataflow, **how):
    matrix = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    jaxpr = jax.make_jaxpr(lambda lhs, rhs: multiply(lhs, rhs, mesh=make_mesh((4, 2)), dataflow=dataflow, **how))(
        matrix, matrix
    )
    return waits_for(shard_map_body(jaxpr.jaxpr))


def numbers(body, name):
    return [number for number, (primitive, _) in enumerate(body) if primitive == name]


def waits(body, one, other):
    return other in body[one][1]


@pytest.mark.quick
@pytest.mark.parametrize("dataflow", ["ls", "rs"])
def test_transfers_of_ls_and_rs_run_beside_products(dataflow):
    """A pitfall of the authors' code: there, only the output-stationary loop is pipelined."""
    body = trace(dataflow, slices=SLICES, block=2)
    gathers, dots, scatters = (numbers(body, name) for name in ("all_gather", "dot_general", "reduce_scatter"))
    assert len(gathers) == len(dots) == len(scatters) == SLICES
    for s in range(SLICES - 1):
        assert not waits(body, gathers[s + 1], dots[s])
        assert not waits(body, scatters[s], dots[s + 1])
        assert not waits(body, dots[s + 1], scatters[s])
        assert gathers[s + 1] < dots[s] < scatters[s] or s == 0


@pytest.mark.parametrize("split_for_overlap", [False, True])
def test_transfers_of_os_run_beside_products(split_for_overlap):
    body = trace("os", slices=SLICES, block=2, split_for_overlap=split_for_overlap)
    gathers, dots = numbers(body, "all_gather"), numbers(body, "dot_general")
    per_slice = 2 if split_for_overlap else 1
    assert (len(gathers), len(dots)) == (2 * SLICES, per_slice * (SLICES - 1) + 1)  # the last hides nothing
    for s in range(SLICES - 1):
        last_of_slice = dots[per_slice * (s + 1) - 1]
        assert not any(waits(body, gather, last_of_slice) for gather in gathers[2 * s + 2 : 2 * s + 4])


@pytest.mark.parametrize("split_for_overlap", [False, True])
@pytest.mark.parametrize("dataflow", ["os", "ls", "rs"])
def test_a_chip_holds_two_gathered_slices_at_most(dataflow, split_for_overlap):
    """The gathers of slice s + 2 wait for the product of slice s."""
    body = trace(dataflow, slices=SLICES, block=2, split_for_overlap=split_for_overlap)
    gathers, dots = numbers(body, "all_gather"), numbers(body, "dot_general")
    # In OS, the last slice is one product, whether or not the others are split.
    gathers_per_slice, dots_per_slice = len(gathers) // SLICES, -(-len(dots) // SLICES)
    for s in range(SLICES - 2):
        later = gathers[gathers_per_slice * (s + 2) : gathers_per_slice * (s + 3)]
        product = dots[dots_per_slice * s : dots_per_slice * (s + 1)]
        assert all(waits(body, gather, dot) for gather, dot in itertools.product(later, product))


@pytest.mark.parametrize("split_for_overlap", [False, True])
@pytest.mark.parametrize("dataflow", ["os", "ls", "rs"])
def test_one_slice_is_collective(dataflow, split_for_overlap):
    """The same program, in parts too; in the authors' code, output-stationary with S = 1 gives a wrong result."""
    matrix = jax.ShapeDtypeStruct((64, 64), jnp.float32)

    def text(algorithm, **how):
        mesh = make_mesh((4, 2))
        return str(
            jax.make_jaxpr(lambda a, b: multiply(a, b, mesh=mesh, algorithm=algorithm, dataflow=dataflow, **how))(
                matrix, matrix
            )
        )

    assert text("meshslice", slices=1, split_for_overlap=split_for_overlap) == text("collective")


@pytest.mark.parametrize("dataflow", ["ls", "rs"])
def test_sums_wait_in_the_dtype_in_which_they_travel(dataflow):
    """A barrier holds the sums of a slice until the next product runs; in float32 they would take twice the memory."""
    matrix = jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)
    how = {"mesh": make_mesh((4, 2)), "dataflow": dataflow, "slices": SLICES, "block": 2}
    jaxpr = jax.make_jaxpr(lambda lhs, rhs: multiply(lhs, rhs, **how))(matrix, matrix)
    barriers = [eqn for eqn in shard_map_body(jaxpr.jaxpr).eqns if eqn.primitive.name == "optimization_barrier"]
    assert len(barriers) == SLICES - 1
    assert {var.aval.dtype for eqn in barriers for var in eqn.invars} == {jnp.dtype(jnp.bfloat16)}


any_product = given(
    mesh_shape=st.sampled_from(MESHES),
    dataflow=st.sampled_from(["os", "ls", "rs"]),
    is_transposed=st.booleans(),
    split_for_overlap=st.booleans(),
    slices=st.integers(1, 5),
    block=st.integers(1, 4),
    pieces=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 3)),
)


@pytest.mark.quick
@any_product
@settings(max_examples=6)
def test_some_slices_and_blocks_that_divide(**case):
    check(**case)


@pytest.mark.slow
@any_product
@settings(max_examples=200)
def test_any_slices_and_blocks_that_divide(**case):
    check(**case)


def check(*, mesh_shape, dataflow, is_transposed, split_for_overlap, slices, block, pieces):
    chips = max(mesh_shape)
    sliced = {"os": 1, "ls": 2, "rs": 0}[dataflow]
    m, k, n = (chips * count * (slices * block if dim == sliced else 1) for dim, count in enumerate(pieces))
    lhs, rhs = whole_numbers(m, k, seed=0), whole_numbers(k, n, seed=1)
    how = {"dataflow": dataflow, "is_transposed": is_transposed, "slices": slices, "block": block}
    found = compile_quickly(
        lambda lhs, rhs: multiply(lhs, rhs, mesh=make_mesh(mesh_shape), split_for_overlap=split_for_overlap, **how),
        lhs,
        rhs,
    )(lhs, rhs)
    assert_array_equal(exact(found), exact(lhs) @ exact(rhs))
