"""The matrix products of an operation: of a dot, a convolution, a library's kernel, or of all that a fusion holds.

A product is `batch` times [m, k] by [k, n]. A TPU's compiler writes products as convolutions, batches as dims of their
window: of those only the pairs of places count at which the window meets the input, as XLA's own analysis counts them.
"""

import functools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxquard.errors import HloError
from jaxquard.hlo.backend_config import backend_config
from jaxquard.hlo.module import ArrayShape, Computation, Module, Operation

PRODUCTS = frozenset({"dot", "convolution", "ragged-dot", "scaled-dot"})
_GEMMS = ("__cublas$gemm", "__cublas$lt$matmul", "__onednn$matmul")
_ATTENTION = "__cudnn$fmha"
_CONVOLUTIONS = "__cudnn$conv"
PRODUCT_CALLS = (*_GEMMS, _ATTENTION, _CONVOLUTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixProduct:
    """`batch` products of [m, k] and [k, n], in one operation.

    Attributes:
        dtype: the wider element type of both inputs.
        output_item_bytes: of one element of the output.
    """

    batch: float
    m: float
    k: float
    n: float
    dtype: str
    output_item_bytes: int

    @property
    def flops(self) -> float:
        return 2 * self.batch * self.m * self.k * self.n


def matrix_products(operation: Operation, computation: Computation, module: Module) -> tuple[MatrixProduct, ...]:
    """Returns the products of an operation and of all that it runs, but for the bodies of loops.

    Raises:
        HloError: if the operation is a product whose dims cannot be read; it quotes the line.
    """
    if operation.opcode in PRODUCTS or operation.opcode == "custom-call":
        return _read(operation, computation)
    return tuple(
        product
        for name in operation.calls
        for inner in module.computations[name].operations
        for product in matrix_products(inner, module.computations[name], module)
    )


def _read(operation: Operation, computation: Computation) -> tuple[MatrixProduct, ...]:
    target = (operation.attribute("custom_call_target") or "").strip('"')
    reader: Callable[[Operation, Sequence[ArrayShape]], tuple[MatrixProduct, ...]]
    if operation.opcode in ("dot", "scaled-dot"):
        reader = _dot
    elif operation.opcode == "ragged-dot":
        reader = _ragged_dot
    elif operation.opcode == "convolution":
        reader = _convolution
    elif target.startswith(_GEMMS):
        reader = _gemm
    elif target.startswith(_ATTENTION):
        reader = _attention
    elif target.startswith(_CONVOLUTIONS):
        reader = _library_convolution
    else:
        return ()
    operands = [computation.operation(name).results[0] for name in operation.operands]
    try:
        return reader(operation, operands)
    except (KeyError, IndexError, TypeError, ValueError, AssertionError, ZeroDivisionError) as error:
        raise HloError(f"expected a matrix product with its dims, but found: {operation.line}") from error


def _dot(operation: Operation, operands: Sequence[ArrayShape]) -> tuple[MatrixProduct, ...]:
    batch = _dims(operation.attribute("lhs_batch_dims"))
    left, right = _dims(operation.attribute("lhs_contracting_dims")), _dims(operation.attribute("rhs_contracting_dims"))
    return (_product(operands[0], operands[1], batch, left, right, _item_bytes(operation.results[0])),)


def _dims(text: str | None) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text or ""))


def _product(
    lhs: ArrayShape,
    rhs: ArrayShape,
    batch_dims: Sequence[int],
    lhs_contracted: Sequence[int],
    rhs_contracted: Sequence[int],
    output_item_bytes: int,
) -> MatrixProduct:
    batch, k = (math.prod(lhs.sizes[dim] for dim in dims) for dims in (batch_dims, lhs_contracted))
    assert k == math.prod(rhs.sizes[dim] for dim in rhs_contracted)
    return MatrixProduct(
        batch=batch,
        m=math.prod(lhs.sizes) / batch / k,
        k=k,
        n=math.prod(rhs.sizes) / batch / k,
        dtype=_wider(lhs, rhs),
        output_item_bytes=output_item_bytes,
    )


def _wider(lhs: ArrayShape, rhs: ArrayShape) -> str:
    return max((lhs, rhs), key=_item_bytes).dtype


def _item_bytes(shape: ArrayShape) -> int:
    return ArrayShape(dtype=shape.dtype, sizes=()).size_bytes


def _ragged_dot(operation: Operation, operands: Sequence[ArrayShape]) -> tuple[MatrixProduct, ...]:
    """Every row is multiplied by the matrix of its group."""
    lhs, rhs = operands[:2]
    (k,) = (lhs.sizes[dim] for dim in _dims(operation.attribute("lhs_contracting_dims")))
    groups = math.prod(rhs.sizes[dim] for dim in _dims(operation.attribute("rhs_group_dims")))
    n = math.prod(rhs.sizes) / groups / k
    m = math.prod(lhs.sizes) / k
    item_bytes = _item_bytes(operation.results[0])
    return (MatrixProduct(batch=1, m=m, k=k, n=n, dtype=_wider(lhs, rhs), output_item_bytes=item_bytes),)


def _gemm(operation: Operation, operands: Sequence[ArrayShape]) -> tuple[MatrixProduct, ...]:
    config = backend_config(operation)
    numbers = config.get("gemm_backend_config", config)["dot_dimension_numbers"]
    names = ("lhs_batch_dimensions", "lhs_contracting_dimensions", "rhs_contracting_dimensions")
    batch, left, right = ([int(dim) for dim in numbers.get(name, [])] for name in names)
    return (_product(operands[0], operands[1], batch, left, right, _item_bytes(operation.results[0])),)


def _attention(operation: Operation, operands: Sequence[ArrayShape]) -> tuple[MatrixProduct, ...]:
    """Scores and their product with the values; backward, both again and the gradients of all three inputs.

    Of a causal mask, the kernels leave out the blocks that are masked: half of the keys in the mean.
    """
    config: dict[str, Any] = backend_config(operation)["cudnn_fmha_backend_config"]
    sizes = config["intermediate_tensor_shape"]["dimensions"]
    batch, heads, queries, keys = (int(size) for size in sizes)
    head_dim = math.prod(operands[0].sizes) / (batch * heads * queries)
    keys = keys / 2 if "CAUSAL" in str(config.get("mask_type", "")) else keys
    settings = {"batch": batch * heads, "dtype": operands[0].dtype, "output_item_bytes": _item_bytes(operands[0])}
    scores = MatrixProduct(m=queries, k=head_dim, n=keys, **settings)
    values = MatrixProduct(m=queries, k=keys, n=head_dim, **settings)
    is_backward = "Backward" in (operation.attribute("custom_call_target") or "")
    return (scores, scores, values, values, values) if is_backward else (scores, values)


def _convolution(operation: Operation, operands: Sequence[ArrayShape]) -> tuple[MatrixProduct, ...]:
    lhs, rhs, output = operands[0], operands[1], operation.results[0]
    labels = re.fullmatch(r"(\w+)_(\w+)->(\w+)", operation.attribute("dim_labels") or "")
    assert labels is not None
    window = _window(operation, sum(label.isdecimal() for label in labels[1]))
    pairs = 1
    for dim, (size, stride, low, dilated, spread) in enumerate(window):
        places = [shape.sizes[text.index(str(dim))] for shape, text in ((lhs, labels[1]), (output, labels[3]))]
        pairs *= _num_pairs(places[0], places[1], size, stride, low, dilated, spread)
    features = output.sizes[labels[3].index("f")]
    k = rhs.sizes[labels[2].index("i")]
    groups = int(operation.attribute("batch_group_count") or 1)
    m = lhs.sizes[labels[1].index("b")] / groups * pairs
    item_bytes = _item_bytes(output)
    return (MatrixProduct(batch=1, m=m, k=k, n=features, dtype=_wider(lhs, rhs), output_item_bytes=item_bytes),)


def _window(operation: Operation, num_dims: int) -> list[tuple[int, int, int, int, int]]:
    """Returns size, stride, low padding, dilation of the input and of the window along each dim."""
    settings = dict(re.findall(r"(\w+)=([\d_x-]+)", operation.attribute("window") or ""))

    def each(name: str, default: int) -> list[int]:
        if name not in settings:
            return [default] * num_dims
        return [int(word.partition("_")[0]) for word in settings[name].split("x")]

    names = {"size": 1, "stride": 1, "pad": 0, "lhs_dilate": 1, "rhs_dilate": 1}
    return list(zip(*(each(name, default) for name, default in names.items()), strict=True))


@functools.lru_cache(maxsize=4096)
def _num_pairs(num_in: int, num_out: int, size: int, stride: int, low: int, dilated: int, spread: int) -> int:
    """Returns the number of places of the output and of the window that meet an element of the input."""
    out = np.arange(num_out) * stride - low
    total = 0
    for place in range(size):
        found = out + place * spread
        total += int(np.count_nonzero((found >= 0) & (found <= (num_in - 1) * dilated) & (found % dilated == 0)))
    return total


def _library_convolution(operation: Operation, operands: Sequence[ArrayShape]) -> tuple[MatrixProduct, ...]:
    """Of cuDNN: forward (input, kernel), backward to the input (output, kernel), to the kernel (input, output)."""
    labels = re.fullmatch(r"(\w+)_(\w+)->(\w+)", operation.attribute("dim_labels") or "")
    assert labels is not None
    target, result = operation.attribute("custom_call_target") or "", operation.results[0]
    if "BackwardInput" in target:
        output, kernel = operands[0], operands[1]
    elif "BackwardFilter" in target:
        output, kernel = operands[1], result
    else:
        output, kernel = result, operands[1]
    n = kernel.sizes[labels[2].index("o")]
    k = math.prod(kernel.sizes) / n
    m = math.prod(output.sizes) / n
    item_bytes = _item_bytes(result)
    dtype = _wider(operands[0], operands[1])
    return (MatrixProduct(batch=1, m=m, k=k, n=n, dtype=dtype, output_item_bytes=item_bytes),)
