"""The kernels that a calibration times, by kind of device.

The shapes on accelerators are those of a transformer's layers.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from jaxquard.cluster import KernelKind


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCase:
    """A kernel to time.

    Attributes:
        dtype: of the inputs; `out_dtype` of the result.
        sizes: of a product batch, m, k, n; of element-wise ones the number of inputs, their elements, and the number
            of functions such as tanh; of attention batch, sequence, heads and head dim; of others rows and columns.
    """

    kind: KernelKind
    dtype: str
    out_dtype: str
    sizes: tuple[int, ...]


def kernel_cases(platform: str, *, is_quick: bool) -> tuple[KernelCase, ...]:
    """Returns the kernels to time on a platform, those that say most first."""
    if platform == "cpu":
        return tuple(_cpu_cases(is_quick))
    return tuple(_accelerator_cases(is_quick))


def _case(kind: str, dtype: str, *sizes: int, out: str | None = None) -> KernelCase:
    return KernelCase(kind=KernelKind(kind), dtype=dtype, out_dtype=out or dtype, sizes=sizes)


def _accelerator_cases(is_quick: bool) -> Iterable[KernelCase]:
    bf16, f32 = "bfloat16", "float32"
    # Products in 16 bits are measured apart, whole and in slices (`measure_products`).
    for m, k, n in ((4096, 16384, 4096), (16384, 4096, 4096)):
        yield _case("product", f32, 1, m, k, n)
    for count in (1 << 26, 1 << 28):
        yield _case("elementwise", bf16, 2, count, 0)
        yield _case("elementwise", f32, 2, count, 0)
    for kind in ("reduction", "column_reduction", "softmax", "transpose"):
        yield _case(kind, f32, 16384, 4096)
        yield _case(kind, bf16, 16384, 4096)
    if is_quick:
        return
    for m, k, n in ((4096, 16384, 512), (4096, 2048, 16384)):
        yield _case("product", f32, 1, m, k, n)
    for count in (1 << 25, 1 << 27):
        yield _case("elementwise", bf16, 2, count, 0)
        yield _case("elementwise", f32, 2, count, 0)
    yield _case("elementwise", f32, 1, 1 << 26, 0, out=bf16)
    yield _case("elementwise", bf16, 1, 1 << 26, 0, out=f32)
    yield _case("elementwise", f32, 4, 1 << 26, 0)
    yield _case("elementwise", f32, 1, 1 << 26, 2)
    for rows, columns in ((131072, 2048), (524288, 2048), (2048, 4096)):
        for kind in ("reduction", "column_reduction", "softmax"):
            yield _case(kind, f32, rows, columns)
    for batch in (1, 8):
        yield _case("attention", bf16, batch, 2048, 32, 128)


def _cpu_cases(is_quick: bool) -> Iterable[KernelCase]:
    f32, bf16 = "float32", "bfloat16"
    shapes = [(128, 128, 128), (256, 512, 256), (64, 512, 512)]
    counts = [1 << 12, 1 << 16, 1 << 20]
    if not is_quick:
        shapes += [(512, 512, 512), (32, 64, 256), (1024, 256, 64), (256, 64, 256), (64, 64, 64), (512, 128, 1024)]
        counts += [1 << 14, 1 << 18]
    for m, k, n in shapes:
        yield _case("product", f32, 1, m, k, n)
        yield _case("product", f32, 8, m // 4, k // 4, n // 4)
    for m, k, n in shapes[:3]:
        yield _case("product", bf16, 1, m, k, n)
    for count in counts:
        yield _case("elementwise", f32, 2, count, 0)
        yield _case("elementwise", bf16, 2, count, 0)
        yield _case("elementwise", f32, 1, count, 2)
    for rows, columns in ((256, 256), (1024, 256)) if is_quick else ((64, 64), (256, 256), (1024, 256), (1024, 1024)):
        for kind in ("reduction", "column_reduction", "softmax", "transpose"):
            yield _case(kind, f32, rows, columns)
    yield _case("attention", f32, 2, 128, 4, 32)
