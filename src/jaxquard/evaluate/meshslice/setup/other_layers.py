"""The time of a block's layers that are not fully connected: modelled, where the paper measures (section 4.4).

A roofline: every operation takes as long as its FLOPs at the chip's effective speed or its bytes at the memory's
bandwidth, whichever is longer, and each reads its inputs from memory and writes its output there. Activations are in
bf16; scores and probabilities of the attention in fp32, unfused, over the whole sequence. Nothing communicates, and
all chips share the work evenly.
"""

from dataclasses import dataclass

from jaxquard.cluster import Cluster
from jaxquard.evaluate.meshslice.setup.models import PaperModel
from jaxquard.gemm.autotune.models import SEQUENCE

_ACTIVATION_BYTES, _SCORE_BYTES = 2, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflineOperation:
    """The work of one chip.

    Attributes:
        activations: how often all activations of the hidden width are read or written.
        scores: how often all scores are.
        products: how many products of attention: of the sequence with one head's width.
    """

    name: str
    activations: int
    scores: int = 0
    products: int = 0


OPERATIONS = (
    RooflineOperation(name="scores", activations=2, scores=1, products=1),
    RooflineOperation(name="softmax", activations=0, scores=2),
    RooflineOperation(name="values", activations=2, scores=1, products=1),
    RooflineOperation(name="gradient of probabilities", activations=2, scores=1, products=1),
    RooflineOperation(name="gradient of values", activations=2, scores=1, products=1),
    RooflineOperation(name="gradient of softmax", activations=0, scores=3),
    RooflineOperation(name="gradient of queries", activations=2, scores=1, products=1),
    RooflineOperation(name="gradient of keys", activations=2, scores=1, products=1),
    RooflineOperation(name="two layer norms", activations=2 * 2),
    RooflineOperation(name="gradient of two layer norms", activations=2 * 3),
    RooflineOperation(name="GeLU of 4 widths", activations=4 * 2),
    RooflineOperation(name="gradient of GeLU", activations=4 * 3),
    RooflineOperation(name="two residual sums", activations=2 * 3),
    RooflineOperation(name="gradient of two residual sums", activations=2 * 3),
)


def other_layers_time_s(model: PaperModel, cluster: Cluster, *, batch: int, num_chips: int) -> float:
    """Returns the time of one block's other layers, forward and backward, on each chip."""
    tokens = batch * SEQUENCE / num_chips
    activation_bytes = tokens * model.hidden * _ACTIVATION_BYTES
    score_bytes = tokens * model.num_heads * SEQUENCE * _SCORE_BYTES
    product_flops = 2 * tokens * SEQUENCE * model.hidden
    return sum(
        max(
            operation.products * product_flops / cluster.compute.effective_flops_per_s,
            (operation.activations * activation_bytes + operation.scores * score_bytes)
            / cluster.memory.bandwidth_bytes_per_s,
        )
        for operation in OPERATIONS
    )
