"""Phase 1 of the autotuner: which matrix of each layer stays put (MeshSlice, section 3.2.1).

The largest of X, Y and W stays, Y only if it is larger than X. Of the two forms that keep it, plain and transposed,
a layer takes the one whose input lies as the output of the layer before it, so that nothing reshards between layers.
Table 1 says how they lie: all forms but those of W-stationary take X and give Y alike; W-stationary takes the transpose
of X in its plain form and gives the transpose of Y in its transposed one, so that each such layer turns what follows.

The input of a block is added to its output, and the next block starts with that sum, so both must lie alike: a block,
and each part of it up to a residual sum (`FcLayer.ends_residual`), needs an even number of layers that keep W. Where
the largest matrices make it odd, one layer keeps another one: that which loses least by it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from .autotune_dataflows_1d import choose_1d_dataflows
from .problem import FcLayer, GemmProblem, LayerPlan, Stationary


def choose_dataflows(
    problem: GemmProblem, *, algorithm: str = "meshslice", stationary: Stationary | None = None
) -> tuple[LayerPlan, ...]:
    """The plan of each layer, its slices still to be chosen.

    Args:
        algorithm: the 1D ones have no choice: "1d_tp" keeps W, "fsdp" moves it.
        stationary: what every layer keeps instead, as without the optimisation of Table 2. An odd number of layers that
            keep W leaves the output transposed.
    """
    if algorithm == "1d_tp":
        return choose_1d_dataflows(residual_parts(problem.layers))
    plans, is_turned = [], False
    for part in residual_parts(problem.layers):
        for layer, kept in zip(part, _kept(part, problem.num_rows, algorithm, stationary), strict=True):
            is_transposed = is_turned != (kept is Stationary.W)
            plans.append(LayerPlan(name=layer.name, stationary=kept, is_transposed=is_transposed))
            is_turned = is_transposed
    return tuple(plans)


def residual_parts(layers: Sequence[FcLayer]) -> list[list[FcLayer]]:
    """The layers of a block, in parts whose input and output are added to each other."""
    parts: list[list[FcLayer]] = [[]]
    for layer in layers:
        parts[-1].append(layer)
        if layer.ends_residual:
            parts.append([])
    return [part for part in parts if part]


def matrix_sizes(layer: FcLayer, num_rows: int) -> dict[Stationary, int]:
    """The elements of a layer's matrices; of equal ones the first is preferred."""
    return {
        Stationary.X: num_rows * layer.in_features,
        Stationary.Y: num_rows * layer.out_features,
        Stationary.W: layer.in_features * layer.out_features,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """A layer that keeps another matrix, and how many elements more then move."""

    position: int
    kept: Stationary
    loss: int


def _kept(part: list[FcLayer], num_rows: int, algorithm: str, stationary: Stationary | None) -> list[Stationary]:
    """What each layer keeps: the largest, but W an even number of times."""
    if stationary is not None:
        return [stationary] * len(part)
    sizes = [matrix_sizes(layer, num_rows) for layer in part]
    activations = [Stationary.X if size[Stationary.X] >= size[Stationary.Y] else Stationary.Y for size in sizes]
    if algorithm == "fsdp":
        return activations
    kept = [
        Stationary.W if size[Stationary.W] > size[other] else other
        for size, other in zip(sizes, activations, strict=True)
    ]
    if kept.count(Stationary.W) % 2:
        changes = []
        for position, (size, now, other) in enumerate(zip(sizes, kept, activations, strict=True)):
            changed = other if now is Stationary.W else Stationary.W
            changes.append(_Change(position=position, kept=changed, loss=size[now] - size[changed]))
        best = min(changes, key=lambda change: change.loss)
        kept[best.position] = best.kept
    return kept
