"""Custom calls: kernels of libraries and of users, by the work that is known of them.

Matrix products of libraries are in `matrix_products`. Others pass over memory, or are names for what costs nothing. Of
a user's own kernel the work is known if its author gives it (Pallas' `cost_estimate`); else it is an error.
"""

import enum

from jaxquard.errors import HloError
from jaxquard.hlo.backend_config import backend_config
from jaxquard.hlo.module import Operation
from jaxquard.hlo.work.matrix_products import PRODUCT_CALLS, MatrixProduct


class CallWork(enum.Enum):
    """The work of a custom call."""

    NOTHING = "nothing"
    PASS = "a pass over memory"
    PRODUCT = "matrix products"
    ESTIMATED = "as its author says"


_NOTHING = (
    "AllocateBuffer",
    "Assume",
    "AsyncCollective",
    "ConcatBitcast",
    "Sharding",
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "X64Combine",
    "X64Split",
    "annotate_device_placement",
)
# They move or sort what they are given, or draw random numbers.
_PASSES = (
    "MoveToDevice",
    "MoveToHost",
    "PadToStatic",
    "SliceToDynamic",
    "TopK",
    "__cub$",
    "__gpu$TopK",
    "cu_threefry2x32",
)


def call_target(operation: Operation) -> str:
    """Returns the name of the kernel."""
    return (operation.attribute("custom_call_target") or "").strip('"')


def call_work(operation: Operation) -> CallWork:
    """Returns the work of a custom call.

    Raises:
        HloError: if it is not known; it quotes the line.
    """
    target = call_target(operation)
    for work, names in (
        (CallWork.NOTHING, _NOTHING),
        (CallWork.PASS, _PASSES),
        (CallWork.PRODUCT, PRODUCT_CALLS),
    ):
        if target.startswith(names):
            return work
    if estimated_product(operation):
        return CallWork.ESTIMATED
    raise HloError(
        f"expected a kernel of which the work is known, but found {target!r}, whose author gives no cost_estimate, in: "
        f"{operation.line}"
    )


def estimated_product(operation: Operation) -> tuple[MatrixProduct, ...]:
    """Returns the FLOPs that the author of a kernel gives with it, as one product; none where there are none."""
    config = backend_config(operation)
    estimate = config.get("custom_call_config", config).get("cost_estimate")
    if not isinstance(estimate, dict) or "flops" not in estimate:
        return ()
    side = max(1.0, (int(estimate["flops"]) / 2) ** (1 / 3))
    return (MatrixProduct(batch=1, m=side, k=side, n=side, dtype="bf16", output_item_bytes=0),)
