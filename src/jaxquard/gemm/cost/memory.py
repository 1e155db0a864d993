"""What the fully connected layers of a problem keep in a chip's memory.

All matrices are cut over all chips, so but for the buffers of the moves this does not depend on the mesh.
"""

from jaxquard.gemm.problem import GemmProblem


def kept_bytes(problem: GemmProblem, *, num_chips: int, recompute: bool = False) -> float:
    """Weights, their gradients, and the activations that the backward pass needs, of one chip.

    Args:
        recompute: only the input of each block is kept, and one block's activations are made again at a time.
    """
    weights = sum(layer.in_features * layer.out_features for layer in problem.layers) * problem.num_blocks
    inputs = sum(layer.in_features for layer in problem.layers) * problem.num_rows
    block_input = problem.layers[0].in_features * problem.num_rows
    activations = problem.num_blocks * block_input + inputs if recompute else problem.num_blocks * inputs
    return problem.item_bytes * (2 * weights + activations) / num_chips
