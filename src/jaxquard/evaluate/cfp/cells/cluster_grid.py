"""The cells that are priced for a cluster: the paper's own sizes and batches, two layers of each model.

    devices     one node of the cluster; with two nodes or more, meshes of two axes, 2 nodes by their chips, as well
    sizes       those that the paper names: GPT-2.6B and 6.7B, MoE-7.1B, LLAMA-7B; BERT-large, since it names none
    sequences   1,024 tokens, the length of its example (section 2.2); 512 for BERT
    batches     2 to 32 sequences a device in the paper, here one or two sizes of them

Layers recur, so that two have all programs of a deep model. The paper computes in TF32 on its A100s, which is what XLA
makes of float32 products, and in FP16 on its V100s.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from jaxquard.cluster import Cluster, levels_of
from jaxquard.evaluate.cfp.cells.cell import CellSpec
from jaxquard.evaluate.cfp.cells.grid import MODELS, QUICK_MODELS, quick_cells
from jaxquard.models import zoo

NUM_LAYERS, SEQUENCE_LENGTH = 2, 1024
# The size, and how many sequences of the batch each device has. The first of a model has strategies run whole as well.
SIZES = {
    "gpt": (("gpt-2.6b", 2), ("gpt-2.6b", 8), ("gpt3-6.7b", 2)),
    "bert": (("bert-large", 8),),
    "llama": (("llama-2-7b", 2), ("llama-2-7b", 8)),
    "moe": (("moe-7.1b", 2), ("moe-7.1b", 16)),
}
NUM_STRATEGIES, NUM_FINALISTS = 12, 4
MESH_MODELS = ("gpt", "moe")
# Figure 11: LLAMA in the memory of a chip with growing depth. The paper fixes the batch at 128 on 4 GPUs; with 8
# sequences a device, the prices are those of a cell above.
MEMORY_SIZE, MEMORY_DEPTHS = ("llama-2-7b", 8), (4, 6)
# Of its V100s the paper has as many.
_NUM_V100 = 4
# As Megatron pads vocabularies, so that they can be sharded.
_VOCAB_MULTIPLE = 128


def cluster_cells(cluster: Cluster, models: Sequence[str] = MODELS) -> list[CellSpec]:
    """Returns all cells for a cluster; those that share prices stand next to each other."""
    num_devices, cells = node_size(cluster), []
    for model in models:
        for place, (size, batch) in enumerate(SIZES[model]):
            cell = _cell(cluster, model, size, batch, mesh=(num_devices,))
            cells.append(cell if place else replace(cell, num_strategies=NUM_STRATEGIES))
        if model == "llama":
            cells += _memory_cells(cluster)
    return [*cells, *_node_meshes(cluster, models)]


def quick_cluster_cells(cluster: Cluster, models: Sequence[str] = QUICK_MODELS) -> list[CellSpec]:
    """Returns tiny cells for a cluster, with two choices a block."""
    num_devices = node_size(cluster)
    changes = {"mesh": (num_devices,), "dtype": _dtype(cluster)}
    return [replace(cell, batch_size=max(cell.batch_size, num_devices), **changes) for cell in quick_cells(models)]


def node_size(cluster: Cluster) -> int:
    """Returns the devices of the meshes of one axis: the chips of a node or slice, of V100s as many as in the paper."""
    (node, *_) = levels_of(cluster)
    return min(node.size, _NUM_V100) if _is_v100(cluster) else node.size


def _memory_cells(cluster: Cluster) -> list[CellSpec]:
    size, batch = MEMORY_SIZE
    cell = _cell(cluster, "llama", size, batch, mesh=(node_size(cluster),))
    limited = replace(cell, memory_limit_bytes=cluster.memory.size_bytes)
    return [replace(limited, num_layers=depth) for depth in MEMORY_DEPTHS]


def _node_meshes(cluster: Cluster, models: Sequence[str]) -> list[CellSpec]:
    """Figure 7 on two nodes, where the cluster has them."""
    node, *others = levels_of(cluster)
    if not others or node.is_torus:
        return []
    cells = []
    for model in models:
        if model in MESH_MODELS:
            size, batch = SIZES[model][0]
            cells.append(_cell(cluster, model, size, batch, mesh=(2, node.size)))
    return cells


def _cell(cluster: Cluster, model: str, size: str, batch: int, *, mesh: tuple[int, ...]) -> CellSpec:
    config = zoo.find_model(size).config
    return CellSpec(
        model=model,
        num_layers=NUM_LAYERS,
        model_dim=config.model_dim,
        batch_size=batch * math.prod(mesh),
        sequence_length=min(SEQUENCE_LENGTH, config.sequence_length),
        vocab_size=math.ceil(config.vocab_size / _VOCAB_MULTIPLE) * _VOCAB_MULTIPLE,
        mesh=mesh,
        num_finalists=NUM_FINALISTS,
        size=size,
        dtype=_dtype(cluster),
    )


def _dtype(cluster: Cluster) -> str:
    return "float16" if _is_v100(cluster) else "float32"


def _is_v100(cluster: Cluster) -> bool:
    return cluster.name.lower().startswith("v100")
