"""The mistakes of the authors' public code that data/tpu_v4.md lists, one test each, for those not tested elsewhere.

Elsewhere: S = 1 and the loops of LS and RS in test_meshslice, unknown names in test_errors, weight gradients and the
4x2 mesh in test_dense and test_transformer_block.
"""

import itertools
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from jaxquard.gemm import matmul, multiply
from tests.gemm.collectives import list_collectives
from tests.gemm.jaxpr_dependences import all_primitives
from tests.gemm.meshes import MESHES, compile_quickly, exact, make_mesh, whole_numbers

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("mesh_shape", MESHES)
def test_one_slice_is_right(mesh_shape):
    """Output-stationary with S = 1 returns a wrong result there."""
    lhs, rhs = whole_numbers(16, 32, seed=0), whole_numbers(32, 24, seed=1)
    mesh = make_mesh(mesh_shape)
    found = compile_quickly(lambda lhs, rhs: multiply(lhs, rhs, mesh=mesh, slices=1), lhs, rhs)(lhs, rhs)
    assert_array_equal(exact(found), exact(lhs) @ exact(rhs))


@pytest.mark.parametrize("dataflow", ["os", "ls", "rs"])
def test_cannon_skews_by_neighbour_shifts(dataflow):
    """Its skew is a full all-gather there. Here every transfer goes to a neighbour in the torus, or stays."""
    side = 2
    lhs, rhs = whole_numbers(8, 8, seed=0), whole_numbers(8, 8, seed=1)
    text = compile_quickly(
        lambda lhs, rhs: multiply(lhs, rhs, mesh=make_mesh((side, side)), algorithm="cannon", dataflow=dataflow),
        lhs,
        rhs,
    ).as_text()
    collectives = list_collectives(text)
    assert {collective.kind for collective in collectives} == {"collective-permute"}
    for source, destination in (pair for collective in collectives for pair in collective.groups):
        rows, columns = ((a - b) % side for a, b in zip(divmod(source, side), divmod(destination, side), strict=True))
        assert min(rows, side - rows) + min(columns, side - columns) <= 1


@pytest.mark.slow
def test_cannon_on_larger_meshes():
    """Where a shift to the left is not one to the right; our 8 devices have no such square, so in another process."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.gemm.algorithms.test_pitfalls"],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, "right"), done.stderr


def _multiply_on_larger_meshes():
    """Skews take the shorter way round: side // 2 steps, for which the price is; and no step is made after the loop."""
    jax.config.update("jax_num_cpu_devices", 16)
    for side, dataflow, is_transposed in itertools.product([3, 4], ["os", "ls", "rs"], [False, True]):
        lhs, rhs = whole_numbers(side, 2 * side, seed=0), whole_numbers(2 * side, 3 * side, seed=1)
        mesh = make_mesh((side, side))
        how = {"mesh": mesh, "algorithm": "cannon", "dataflow": dataflow, "is_transposed": is_transposed}
        compiled = compile_quickly(lambda lhs, rhs, how=how: multiply(lhs, rhs, **how), lhs, rhs)
        assert_array_equal(exact(compiled(lhs, rhs)), exact(lhs) @ exact(rhs))
        permutes = [one for one in list_collectives(compiled.as_text()) if one.kind == "collective-permute"]
        assert len(permutes) == 2 * (side // 2) + 2 * (side - 1)


def test_there_is_a_summa():
    lhs, rhs = whole_numbers(8, 8, seed=0), whole_numbers(8, 8, seed=1)
    text = compile_quickly(
        lambda lhs, rhs: multiply(lhs, rhs, mesh=make_mesh((2, 2)), algorithm="summa"), lhs, rhs
    ).as_text()
    assert {collective.kind for collective in list_collectives(text)} == {"collective-permute"}


@pytest.mark.parametrize(("ring", "step"), [("rows", 2), ("columns", 1)])
def test_wangs_ring_runs_along_rows_too(ring, step):
    """It runs along the columns only there. Devices of a 4x2 mesh are numbered row by row."""
    lhs, rhs = whole_numbers(8, 8, seed=0), whole_numbers(8, 8, seed=1)
    text = compile_quickly(
        lambda lhs, rhs: multiply(lhs, rhs, mesh=make_mesh((4, 2)), algorithm="wang", ring=ring), lhs, rhs
    ).as_text()
    pairs = [pair for one in list_collectives(text) if one.kind == "collective-permute" for pair in one.groups]
    assert pairs
    assert {abs(source - destination) for source, destination in pairs} <= {step, 3 * step}


@pytest.mark.parametrize("stationary", ["y", "x", "w"])
def test_weight_gradients_are_products_of_their_own(stationary):
    """They never reach the user there. The gradient of w alone is one product, and no other is computed."""
    mesh = make_mesh((4, 2))
    x, w = jnp.ones((8, 32)), jnp.ones((32, 16))

    def gradient(w):
        return jax.grad(lambda w: jnp.sum(matmul(x, w, mesh=mesh, stationary=stationary)))(w)

    compiled = compile_quickly(gradient, w)
    assert_array_equal(compiled(w), np.full((32, 16), 8.0))
    assert "custom_vjp_call" in set(all_primitives(jax.make_jaxpr(lambda w: matmul(x, w, mesh=mesh))(w).jaxpr))


if __name__ == "__main__":
    _multiply_on_larger_meshes()
    sys.stdout.write("right")
