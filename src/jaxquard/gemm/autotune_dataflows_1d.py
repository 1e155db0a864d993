"""The dataflows of 1D tensor parallelism: W stays, whatever is largest (MeshSlice, section 4.3).

On one row of chips nothing moves along the rows, so what moves is X or Y, and W stays. Activations are cut by rows (as
a sequence is) or by features, and a layer takes them one way and gives them one way:

    W, plain        by rows -> by features       X is gathered
    W, transposed   by features -> by rows       Y is scattered
    Y, plain        by features -> by features   X is gathered
    X, plain        by features -> by features   Y is scattered

Megatron's block is the first two in turn: it starts and ends cut by rows. It is taken where the first layer does not
narrow and the last does not widen, with the others between them moving the smaller of X and Y; and where that is not
so, or there is one layer alone, all are cut by features. So nothing reshards between layers or at a residual sum.
"""

from collections.abc import Sequence

from .problem import FcLayer, LayerPlan, Stationary


def choose_1d_dataflows(parts: Sequence[Sequence[FcLayer]]) -> tuple[LayerPlan, ...]:
    """The plans of the layers of a block, given in parts whose input and output are added to each other."""
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
    """The smaller of X and Y moves."""
    is_wider = layer.out_features > layer.in_features
    return LayerPlan(name=layer.name, stationary=Stationary.Y if is_wider else Stationary.X)
