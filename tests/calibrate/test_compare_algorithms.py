"""Algorithms timed against a plain product: who runs where, and that all give its result."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from jaxquard.calibrate import compare_algorithms
from jaxquard.calibrate.compare_algorithms import _Bench
from jaxquard.errors import GemmError
from tests.gemm.collectives import list_collectives


def _compare(**options):
    sizes = {"m": 64, "k": 64, "n": 64, "rounds": 2, "sample_s": 0.0}
    return compare_algorithms(**(sizes | options), devices=jax.devices()[:4])


def test_every_candidate_runs_on_the_meshes_that_it_can_use():
    done = []
    found = _compare(
        algorithms=["meshslice", "cannon", "1d_tp"],
        slices=(1, 2),
        on_progress=lambda *step: done.append(step),
    )
    assert done == [(1, 3, "1x4"), (2, 3, "2x2"), (3, 3, "4x1")]
    candidates = {(one.algorithm, one.mesh_shape, one.num_slices) for one in found}
    meshes = [(1, 4), (2, 2), (4, 1)]
    assert candidates == (
        {("plain", mesh, 1) for mesh in meshes}
        | {("meshslice", mesh, slices) for mesh in meshes for slices in (1, 2)}
        | {("cannon", (2, 2), 1), ("1d_tp", (1, 4), 1)}
    )
    assert all(one.ratio > 0 and one.time_s > 0 and one.worst_error < 0.02 for one in found)
    assert [one.ratio for one in found] == sorted(one.ratio for one in found)
    assert all(one.ratio == 1.0 for one in found if one.algorithm == "plain")


def test_what_does_not_fit_is_left_out_with_the_reason():
    found = _compare(algorithms=["meshslice"], slices=(5,))
    assert [one.algorithm for one in found[:3]] == ["plain"] * 3
    assert all("64" in one.why_not for one in found[3:])


def test_meshes_that_do_not_divide_are_left_out():
    found = _compare(m=6, k=4, n=6, algorithms=["collective"])
    assert {one.mesh_shape for one in found if not one.why_not} == {(2, 2)}
    left_out = {one.mesh_shape: one.why_not for one in found if one.why_not}
    assert left_out[4, 1].startswith("dim 0 of lhs must be a multiple of 4 (the mesh shards it over 4), but is 6.")
    assert left_out[1, 4].startswith("dim 1 of rhs must be a multiple of 4")


@pytest.mark.parametrize(("dataflow", "kinds"), [("os", {"all-gather"}), ("ls", {"all-gather", "reduce-scatter"})])
def test_nothing_is_moved_before_a_product(dataflow, kinds):
    """The matrices lie as the dataflow wants them: what is timed has the collectives of the algorithm alone."""
    mesh = Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("rows", "columns"))
    bench = _Bench(mesh=mesh, sizes=(64, 64, 64), dataflow=dataflow, dtype=jnp.float32, rounds=1, sample_s=0.0)
    lhs, rhs, _ = bench.place()
    text = bench.compile("collective", 1, lhs, rhs).as_text()
    assert {one.kind for one in list_collectives(text)} == kinds


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"algorithms": ["magic"]}, "no GeMM algorithm is called 'magic'"),
        ({"dataflow": "up"}, "dataflow must be one of"),
    ],
)
def test_unknown_words(options, message):
    with pytest.raises(GemmError, match=message):
        _compare(**options)
