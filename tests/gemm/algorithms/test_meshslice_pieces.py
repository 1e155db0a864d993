"""MeshSlice for TPUs in LS and RS: each step of a scatter can run beside a piece of the next product."""

import jax
import jax.numpy as jnp
import pytest
from numpy.testing import assert_array_equal

from jaxquard.gemm import multiply
from jaxquard.gemm.algorithms.transfers.line_scatter import LineScatter
from tests.gemm.jaxpr_dependences import shard_map_body, waits_for
from tests.gemm.meshes import make_mesh

SLICES, CHIPS = 4, 4


@pytest.mark.parametrize(("dataflow", "mesh_shape"), [("ls", (2, CHIPS)), ("rs", (CHIPS, 2))])
def test_every_step_runs_beside_a_piece(dataflow, mesh_shape):
    matrix = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    how = {"mesh": make_mesh(mesh_shape), "dataflow": dataflow, "slices": SLICES, "block": 1, "split_for_overlap": True}
    jaxpr = jax.make_jaxpr(lambda lhs, rhs: multiply(lhs, rhs, **how))(matrix, matrix)
    body = waits_for(shard_map_body(jaxpr.jaxpr))
    dots = [number for number, (name, _) in enumerate(body) if name == "dot_general"]
    steps = [number for number, (name, _) in enumerate(body) if name == "ppermute"]
    assert (len(dots), len(steps)) == (SLICES * CHIPS, SLICES * 2 * (CHIPS - 1))
    for s in range(SLICES - 1):
        for t in range(CHIPS - 1):
            beside, following = dots[(s + 1) * CHIPS + t :][:2]
            for step in steps[2 * (s * (CHIPS - 1) + t) :][:2]:
                assert beside not in body[step][1]
                assert step not in body[beside][1]
                assert step in body[following][1]


@pytest.mark.parametrize("num_chips", [2, 4, 8])
@pytest.mark.parametrize("dim", [0, 1])
def test_line_scatter_is_a_reduce_scatter(num_chips, dim):
    mesh = jax.make_mesh((num_chips,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    line = LineScatter(axes=("x",), dim=dim, name="transfer0")

    def by_line(partial):
        passing = None
        for number in range(1, line.num_steps + 1):
            passing = line.step(partial[0], number, passing)
        return line.finish(partial[0], passing)[None]

    partials = jax.random.randint(jax.random.key(0), (num_chips, 16, 24), -8, 8).astype(jnp.bfloat16)
    spec = jax.sharding.PartitionSpec("x")
    parts = jax.jit(jax.shard_map(by_line, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))(partials)
    assert_array_equal(jnp.concatenate(list(parts), axis=dim), partials.sum(0))
