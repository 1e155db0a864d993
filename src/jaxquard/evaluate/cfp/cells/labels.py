"""Names and colours of models and plans on the page; the hues follow Paul Tol's "bright" set."""

from jaxquard.evaluate.cfp.cells.cell import Cell, CellSpec
from jaxquard.evaluate.common.numbers import mesh_label

MODEL_LABELS = {"gpt": "GPT", "bert": "BERT", "llama": "LLAMA", "moe": "MoE"}
OURS = "chosen"
SEARCHED = "searched"
# What the paper compares with, by the names of our baselines: PyTorch, DeepSpeed-Megatron, Alpa.
COMPARED = ("data parallel", "megatron", "volume")
PLAN_LABELS = {
    OURS: "chosen",
    "data parallel": "data parallel",
    "megatron": "Megatron",
    "megatron, sequence parallel": "Megatron, sequence parallel",
    "volume": "minimum volume (Alpa)",
    "zero 1": "ZeRO-1",
    "zero 3": "ZeRO-3",
}
PLAN_COLORS = {
    OURS: "#2f62b5",
    "data parallel": "#7d8597",
    "megatron": "#2a9d8f",
    "megatron, sequence parallel": "#8ecfc6",
    "volume": "#e0a93b",
    "zero 1": "#d1495b",
    "zero 3": "#a05195",
}
CHOICE_COLORS = {
    "rows": "#7d8597",
    "columns": "#2f62b5",
    "contracted": "#d1495b",
    "batch 0": "#2a9d8f",
    "scattered": "#e0a93b",
    "scattered columns": "#f2d08a",
    "sequence": "#a05195",
}
COMPUTE_COLOR, COMMUNICATION_COLOR = "#9db9e3", "#d1495b"


def model_label(model: str) -> str:
    """`gpt` as `GPT`."""
    return MODEL_LABELS.get(model, model)


def cell_label(spec: CellSpec) -> str:
    """The name of a cell, with the model as it is written."""
    return model_label(spec.model) + spec.name.removeprefix(spec.model)


def size_label(spec: CellSpec) -> str:
    """`256 wide, batch 8`, or `gpt-2.6b, batch 16`, with the mesh if it has two axes."""
    mesh = f", {mesh_label(spec.mesh)}" if len(spec.mesh) > 1 else ""
    width = f"{spec.model_dim} wide" if spec.size is None else spec.size
    return f"{width}, batch {spec.batch_size}{mesh}"


def chosen_words(cell: Cell) -> str:
    """Names the chosen plan: a baseline, or one that the search put together."""
    best = cell.best
    if best is None:
        return "nothing fits"
    same = [run.name for run in cell.runs if (run.choices, run.storage) == (best.choices, best.storage)]
    stored = f", state as {PLAN_LABELS[best.storage]}" if best.storage in PLAN_LABELS else ""
    return next((PLAN_LABELS[name] for name in same if name in PLAN_LABELS), SEARCHED + stored)
