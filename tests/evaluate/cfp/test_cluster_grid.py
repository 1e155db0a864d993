"""The cells for a cluster: the paper's sizes, on its nodes."""

import dataclasses

import jax
import pytest

from jaxquard.cluster import load_cluster
from jaxquard.evaluate.cfp.cells.cell_step import make_step
from jaxquard.evaluate.cfp.cells.cluster_grid import cluster_cells, quick_cluster_cells
from jaxquard.evaluate.cfp.cells.grid import MODELS


def cells(name, models=MODELS):
    return cluster_cells(load_cluster(name), models)


def test_one_node_of_a100s():
    found = cells("a100-pcie-8")
    assert len(set(found)) == len(found)
    assert {cell.model for cell in found} == set(MODELS)
    assert {(cell.mesh, cell.dtype, cell.is_thin) for cell in found} == {((8,), "float32", False)}
    sizes = {(cell.size, cell.batch_size) for cell in found}
    # Figures 12, 10, 14 and 1 of the paper.
    assert {("gpt-2.6b", 16), ("gpt3-6.7b", 16), ("moe-7.1b", 16), ("llama-2-7b", 64)} <= sizes
    assert all(cell.batch_size % 8 == 0 and cell.vocab_size % 128 == 0 for cell in found)
    for model in MODELS:
        assert [cell.num_strategies for cell in found if cell.model == model].count(12) == 1
    limited = [cell for cell in found if cell.has_limit]
    assert [(cell.model, cell.num_layers, cell.memory_limit_bytes) for cell in limited] == [
        ("llama", 4, 40_000_000_000),
        ("llama", 6, 40_000_000_000),
    ]


def test_two_nodes_have_meshes_of_two_axes_as_well():
    one, two = cells("a100-pcie-8"), cells("a100-pcie-8x2")
    assert two[: len(one)] == one
    assert [(cell.model, cell.mesh, cell.batch_size) for cell in two[len(one) :]] == [
        ("gpt", (2, 8), 32),
        ("moe", (2, 8), 32),
    ]


def test_four_v100s_in_half_precision():
    found = cells("v100-nvlink", ("gpt",))
    assert {(cell.mesh, cell.dtype) for cell in found} == {((4,), "float16")}
    assert found[0].name == "gpt, 2 layers of gpt-2.6b, batch 8, mesh 4"


def test_a_slice_of_a_torus_is_one_axis():
    assert {cell.mesh for cell in cells("v5e-4x4", ("gpt", "moe"))} == {(16,)}


def test_quick_cells_are_tiny():
    found = quick_cluster_cells(load_cluster("v5e-4x4"))
    assert {(cell.mesh, cell.batch_size, cell.is_thin, cell.size) for cell in found} == {((16,), 16, True, None)}


@pytest.mark.parametrize("model", MODELS)
def test_steps_have_the_published_sizes(model):
    (cell, *_) = cells("a100-pcie-8", (model,))
    _, (state, batch) = make_step(dataclasses.replace(cell, dtype="float16"))
    leaves = jax.tree.leaves(state["params"])
    dims = {dim for leaf in leaves for dim in leaf.shape}
    assert {cell.model_dim, cell.vocab_size} <= dims
    if model == "llama":
        assert 11008 in dims
    if model == "moe":
        assert 32 in dims
    assert batch["tokens"].shape == (cell.batch_size, cell.sequence_length)
