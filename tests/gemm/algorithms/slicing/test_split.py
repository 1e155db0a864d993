"""MeshSlice for TPUs in LS and RS: every permute of a sum can run beside a product, and the next product adds it."""

import jax
import jax.numpy as jnp
import pytest

from jaxquard.gemm import multiply
from tests.gemm.jaxpr_dependences import shard_map_body, waits_for
from tests.gemm.meshes import make_mesh

SLICES, CHIPS = 4, 4


@pytest.mark.parametrize(("dataflow", "mesh_shape"), [("ls", (2, CHIPS)), ("rs", (CHIPS, 2))])
def test_every_permute_runs_beside_a_product(dataflow, mesh_shape):
    """The streams take turns: a permute runs beside the product of the other stream."""
    matrix = jax.ShapeDtypeStruct((64, 64), jnp.float32)
    how = {"mesh": make_mesh(mesh_shape), "dataflow": dataflow, "slices": SLICES, "block": 4, "split_for_overlap": True}
    jaxpr = jax.make_jaxpr(lambda lhs, rhs: multiply(lhs, rhs, **how))(matrix, matrix)
    body = waits_for(shard_map_body(jaxpr.jaxpr))
    dots = [number for number, (name, _) in enumerate(body) if name == "dot_general"]
    permutes = [number for number, (name, _) in enumerate(body) if name == "ppermute"]
    assert (len(dots), len(permutes)) == (SLICES * 2 * CHIPS, SLICES * 2 * (CHIPS - 1))
    for s in range(SLICES):
        for step in range(2 * (CHIPS - 1)):
            permute = permutes[s * 2 * (CHIPS - 1) + step]
            sent, beside, following = dots[s * 2 * CHIPS + step :][:3]
            assert sent in body[permute][1]
            assert beside not in body[permute][1]
            assert permute not in body[beside][1]
            assert permute in body[following][1]
