"""The cells of the evaluation, in one place: what runs for which figure, whole and in small.

The grid has cells where data parallelism loses: small batches, wide layers, a memory limit. Cells that share prices
stand next to each other, so that the second of them has little to measure.
"""

from collections.abc import Sequence
from dataclasses import replace

from jaxquard.evaluate.cfp.cells.cell import CellSpec

MODELS = ("gpt", "bert", "llama", "moe")
# A quick look leaves out BERT, which is much like GPT.
QUICK_MODELS = ("gpt", "llama", "moe")
# Width and batch of the grid, three batches and one wide model; the first is run under a memory limit as well.
SIZES = ((256, 8), (256, 16), (256, 32), (512, 8))
LIMIT_SHARE = 0.7
NUM_LAYERS = 2
# A step that is put together from pairs of neighbours, and a few of its plans run whole (Figure 10).
DEEP_MODEL, DEEP_LAYERS, DEEP_STRATEGIES = "gpt", 6, 6
DEEP_SIZE = SIZES[1]
# Meshes of two axes, for these models (CFP, section 5.2).
MESHES = ((2, 4), (4, 2))
MESH_MODELS = ("gpt", "moe")
# Figure 11: LLAMA in a fixed memory, with growing batches, and with growing depth at the first of them. In 40 MiB data
# parallelism has room for 2 layers, ZeRO-1 for 3 and ZeRO-3 for 4; with 6 only Megatron with sequence parallelism fits.
MEMORY_BATCHES = (16, 32, 64)
MEMORY_DEPTHS = (3, 4, 6)
MEMORY_LIMIT_BYTES = 40 * 2**20

_QUICK = CellSpec(
    model="gpt",
    num_layers=1,
    model_dim=64,
    batch_size=8,
    sequence_length=16,
    vocab_size=128,
    num_strategies=3,
    num_finalists=1,
    is_thin=True,
    dropout_rate=0.0,
    optimizer="sgd",
)


def grid(models: Sequence[str] = MODELS) -> list[CellSpec]:
    """Figures 1, 7, 8, 9, 10, 12 and 14: all strategies of a layer run whole."""
    cells = []
    for model in models:
        for model_dim, batch_size in SIZES:
            cell = CellSpec(
                model=model,
                num_layers=NUM_LAYERS,
                model_dim=model_dim,
                batch_size=batch_size,
                num_strategies=None,
            )
            cells.append(cell)
            if (model_dim, batch_size) == SIZES[0]:
                cells.append(replace(cell, memory_limit_share=LIMIT_SHARE))
    return cells


def deep(models: Sequence[str] = MODELS) -> list[CellSpec]:
    """Figure 10 where the prediction is no measurement of the whole."""
    if DEEP_MODEL not in models:
        return []
    model_dim, batch_size = DEEP_SIZE
    return [
        CellSpec(
            model=DEEP_MODEL,
            num_layers=DEEP_LAYERS,
            model_dim=model_dim,
            batch_size=batch_size,
            num_strategies=DEEP_STRATEGIES,
        )
    ]


def meshes(models: Sequence[str] = MODELS) -> list[CellSpec]:
    """Figure 7 on meshes of two axes."""
    model_dim, batch_size = SIZES[0]
    return [
        CellSpec(model=model, num_layers=NUM_LAYERS, model_dim=model_dim, batch_size=batch_size, mesh=mesh)
        for model in models
        if model in MESH_MODELS
        for mesh in MESHES
    ]


def memory(models: Sequence[str] = MODELS) -> list[CellSpec]:
    """Figure 11: batches, then depths."""
    if "llama" not in models:
        return []
    base = CellSpec(
        model="llama",
        num_layers=NUM_LAYERS,
        model_dim=SIZES[0][0],
        batch_size=MEMORY_BATCHES[0],
        memory_limit_bytes=MEMORY_LIMIT_BYTES,
    )
    batches = [replace(base, batch_size=batch_size) for batch_size in MEMORY_BATCHES]
    return [*batches, *(replace(base, num_layers=depth) for depth in MEMORY_DEPTHS)]


def full_cells(models: Sequence[str] = MODELS) -> list[CellSpec]:
    """All of the whole evaluation."""
    return [*grid(models), *deep(models), *meshes(models), *memory(models)]


def quick_cells(models: Sequence[str] = QUICK_MODELS) -> list[CellSpec]:
    """The same figures from tiny models with two choices a block, in minutes."""
    cells = [replace(_QUICK, model=model) for model in models]
    if "llama" in models:
        cells.append(replace(_QUICK, model="llama", num_strategies=0, memory_limit_share=LIMIT_SHARE))
    return cells
