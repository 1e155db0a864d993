"""Phase 1 of the autotuner: the stationary matrix of each layer (MeshSlice, section 3.2.1).

The largest of X, Y and W is stationary, Y only if it is larger than X. Of the two forms of that dataflow, plain and
transposed, a layer takes the one whose input is sharded as the output of the layer before it, so that nothing reshards
between layers. By Table 1 all forms but the W-stationary ones shard X and Y alike. A W-stationary layer takes the
transpose of X in its plain form and gives the transpose of Y in its transposed one, so that it transposes what follows.

The input of a block is added to its output, and the next block starts with that sum, so both must be sharded alike: a
block, and each part of it up to a residual sum (`FcLayer.ends_residual`), needs an even number of W-stationary layers.
Where the largest matrices make it odd, one layer keeps another matrix: the change that moves the fewest elements more.

1D tensor parallelism (section 4.3) is W-stationary, whatever is largest. On one row of chips nothing moves along the
rows, so only X or Y moves. Activations are sharded by rows (as a sequence is) or by features, and a layer takes them
one way and gives them one way:

    W, plain        by rows -> by features       X is gathered
    W, transposed   by features -> by rows       Y is scattered
    Y, plain        by features -> by features   X is gathered
    X, plain        by features -> by features   Y is scattered

Megatron's block is the first two in turn: it starts and ends sharded by rows. It is taken where the first layer does
not narrow and the last does not widen, with the others between them moving the smaller of X and Y; and where that is
not so, or there is one layer alone, all are sharded by features. So nothing reshards between layers or at a residual
sum.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxquard.gemm.problem import FcLayer, GemmProblem, LayerPlan, Stationary


def choose_dataflows(
    problem: GemmProblem, *, algorithm: str = "meshslice", stationary: Stationary | None = None
) -> tuple[LayerPlan, ...]:
    """Returns the plan of each layer, its slices still to be chosen.

    Args:
        algorithm: the 1D ones have no choice: "1d_tp" keeps W, "fsdp" moves it.
        stationary: the matrix that every layer keeps instead, as without the optimisation of Table 2. An odd number of
            layers that keep W leaves the output transposed.
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
    """Splits the layers of a block into parts whose input and output are added to each other."""
    parts: list[list[FcLayer]] = [[]]
    for layer in layers:
        parts[-1].append(layer)
        if layer.ends_residual:
            parts.append([])
    return [part for part in parts if part]


def matrix_sizes(layer: FcLayer, num_rows: int) -> dict[Stationary, int]:
    """Returns the elements of a layer's matrices; of equal ones the first is preferred."""
    return {
        Stationary.X: num_rows * layer.in_features,
        Stationary.Y: num_rows * layer.out_features,
        Stationary.W: layer.in_features * layer.out_features,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """A layer that keeps another matrix, and the number of elements that move in addition."""

    position: int
    kept: Stationary
    loss: int


def _kept(part: list[FcLayer], num_rows: int, algorithm: str, stationary: Stationary | None) -> list[Stationary]:
    """Returns the matrix that each layer keeps: the largest, but W an even number of times."""
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


def choose_1d_dataflows(parts: Sequence[Sequence[FcLayer]]) -> tuple[LayerPlan, ...]:
    """Returns the plans of the layers of a block, given in parts whose input and output are added to each other."""
    is_by_rows = all(
        len(part) > 1 and part[0].in_features <= part[0].out_features and part[-1].in_features >= part[-1].out_features
        for part in parts
    )
    plans = []
    for part in parts:
        chosen = [_by_features(layer) for layer in part]
        if is_by_rows:
            chosen[0] = LayerPlan(name=part[0].name, stationary=Stationary.W)
            chosen[-1] = LayerPlan(name=part[-1].name, stationary=Stationary.W, is_transposed=True)
        plans += chosen
    return tuple(plans)


def _by_features(layer: FcLayer) -> LayerPlan:
    """Returns the plan in which the smaller of X and Y moves."""
    is_wider = layer.out_features > layer.in_features
    return LayerPlan(name=layer.name, stationary=Stationary.Y if is_wider else Stationary.X)
