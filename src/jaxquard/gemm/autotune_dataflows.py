"""Phase 1 of the autotuner: which matrix of each layer stays put (MeshSlice, section 3.2.1).

The largest of X, Y and W stays, Y only if it is larger than X. Of the two forms that keep it, plain and transposed,
a layer takes the plain one, unless its input would have to be transposed for it. A layer's input is the output of the
layer before it, and Table 1 says how that lies: all plain forms but W-stationary take X and give Y; the plain form of
W-stationary takes the transpose of X, so that after a plain layer its transposed form is used, which gives the
transpose of Y.
"""

from .problem import FcLayer, GemmProblem, LayerPlan, Stationary


def choose_dataflows(
    problem: GemmProblem, *, algorithm: str = "meshslice", stationary: Stationary | None = None
) -> tuple[LayerPlan, ...]:
    """The plan of each layer, its slices still to be chosen.

    Args:
        algorithm: the 1D ones have no choice: "1d_tp" keeps W, "fsdp" moves it.
        stationary: what every layer keeps instead, as without the optimisation of Table 2.
    """
    plans = []
    input_is_transposed = False
    for layer in problem.layers:
        if algorithm == "1d_tp":
            # The smaller activation moves: gathered before a layer that widens, scattered after one that narrows.
            kept, is_transposed = Stationary.W, layer.out_features <= layer.in_features
        else:
            kept = stationary or largest_matrix(layer, problem.num_rows, can_be_weight=algorithm != "fsdp")
            is_transposed = input_is_transposed != (kept is Stationary.W)
            input_is_transposed = is_transposed
        plans.append(LayerPlan(name=layer.name, stationary=kept, is_transposed=is_transposed))
    return tuple(plans)


def largest_matrix(layer: FcLayer, num_rows: int, *, can_be_weight: bool = True) -> Stationary:
    """Which of a layer's matrices has most elements."""
    sizes = {
        Stationary.X: num_rows * layer.in_features,
        Stationary.Y: num_rows * layer.out_features,
        Stationary.W: layer.in_features * layer.out_features if can_be_weight else 0,
    }
    return max(sizes, key=lambda kind: sizes[kind])
