"""The products of a whole problem, their FLOPs, and the bytes that a chip keeps for them."""

from collections.abc import Sequence

from jaxquard.gemm.algorithms.products.layer_products import SizedProducts, sized_products
from jaxquard.gemm.problem import GemmProblem, LayerPlan


def plan_products(problem: GemmProblem, layers: Sequence[LayerPlan]) -> tuple[SizedProducts, ...]:
    """Returns the three products of each layer, as planned."""
    return tuple(
        sized_products(
            layer,
            num_rows=problem.num_rows,
            stationary=plan.stationary,
            is_transposed=plan.is_transposed,
            item_bytes=problem.item_bytes,
        )
        for layer, plan in zip(problem.layers, layers, strict=True)
    )


def problem_flops(problem: GemmProblem) -> float:
    """Returns the FLOPs of all layers, forward and backward, of one step."""
    weights = sum(layer.in_features * layer.out_features for layer in problem.layers)
    return 3 * 2.0 * problem.num_rows * weights * problem.num_blocks


def kept_bytes(problem: GemmProblem, *, num_chips: int, recompute: bool = False, optimizer_bytes: int = 0) -> float:
    """Returns the bytes of one chip for weights, gradients, optimizer state, and activations that backward needs.

    All matrices are sharded over all chips, so this does not depend on the mesh; the buffers of the transfers do.

    Args:
        recompute: only the input of each block is kept, and one block's activations are computed again at a time.
        optimizer_bytes: of the optimizer's state for each parameter.
    """
    weights = sum(layer.in_features * layer.out_features for layer in problem.layers) * problem.num_blocks
    inputs = sum(layer.in_features for layer in problem.layers) * problem.num_rows
    block_input = problem.layers[0].in_features * problem.num_rows
    activations = problem.num_blocks * block_input + inputs if recompute else problem.num_blocks * inputs
    return (problem.item_bytes * (2 * weights + activations) + optimizer_bytes * weights) / num_chips
