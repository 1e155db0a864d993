"""Times the kernels that compiled programs consist of, on one device.

Products of many shapes and types, passes over memory, reductions and attention. Small kernels are left out on an
accelerator: a run of one takes as long as the host needs to start it.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxquard.calibrate.sampling import time_runs_s
from jaxquard.cluster import KernelKind, KernelSample, ProductShape

Progress = Callable[[int, int, str], None]

_ROUNDS, _SAMPLE_S = 3, 0.01
_HLO_NAMES = {"bfloat16": "bf16", "float32": "f32", "float16": "f16"}
# (m, k, n) of the products of a transformer's layers, whole and sharded over some dim, and of a few others.
_QUICK_PRODUCTS = (
    (16384, 4096, 4096), (2048, 4096, 16384), (16384, 512, 4096), (16384, 4096, 512), (4096, 16384, 512),
)  # fmt: skip
_MORE_PRODUCTS = (
    (16384, 4096, 12288), (16384, 16384, 4096), (2048, 4096, 4096), (2048, 4096, 12288), (2048, 16384, 4096),
    (16384, 4096, 1536), (16384, 4096, 2048), (16384, 2048, 4096), (4096, 2048, 4096), (4096, 2048, 16384),
    (4096, 16384, 4096), (4096, 16384, 16384), (4096, 16384, 2048), (512, 16384, 4096), (1536, 16384, 4096),
    (2048, 16384, 16384), (8192, 8192, 8192), (1024, 1024, 1024), (2048, 2048, 2048),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCase:
    """A kernel to time.

    Attributes:
        dtype: of the inputs; `out_dtype` of the result.
        sizes: of a product batch, m, k, n; of element-wise ones the number of inputs and their elements; of attention
            batch, sequence, heads and head dim; of others rows and columns.
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
    for m, k, n in _QUICK_PRODUCTS:
        yield _case("product", bf16, 1, m, k, n)
    for sizes in ((32, 2048, 128, 2048), (32, 2048, 2048, 128)):
        yield _case("product", bf16, *sizes)
    for count in (1 << 24, 1 << 28):
        yield _case("elementwise", bf16, 2, count)
        yield _case("elementwise", f32, 2, count)
    for kind in ("reduction", "column_reduction", "softmax", "transpose"):
        yield _case(kind, f32, 16384, 4096)
        yield _case(kind, bf16, 16384, 4096)
    if is_quick:
        return
    for m, k, n in _MORE_PRODUCTS:
        yield _case("product", bf16, 1, m, k, n)
    for m, k, n in ((4096, 16384, 4096), (4096, 16384, 512), (4096, 2048, 16384), (16384, 4096, 4096)):
        yield _case("product", bf16, 1, m, k, n, out=f32)
        yield _case("product", f32, 1, m, k, n)
    for batch in (8, 256):
        yield _case("product", bf16, batch, 2048, 128, 2048)
        yield _case("product", bf16, batch, 2048, 2048, 128)
        yield _case("product", bf16, batch, 2048, 128, 2048, out=f32)
    for count in (1 << 20, 1 << 22, 1 << 26):
        yield _case("elementwise", bf16, 2, count)
        yield _case("elementwise", f32, 2, count)
    yield _case("elementwise", f32, 1, 1 << 26, out=bf16)
    yield _case("elementwise", bf16, 1, 1 << 26, out=f32)
    yield _case("elementwise", f32, 4, 1 << 26)
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
        counts += [1 << 14, 1 << 18, 1 << 22]
    for m, k, n in shapes:
        yield _case("product", f32, 1, m, k, n)
        yield _case("product", f32, 8, m // 4, k // 4, n // 4)
    for m, k, n in shapes[:3]:
        yield _case("product", bf16, 1, m, k, n)
    for count in counts:
        yield _case("elementwise", f32, 2, count)
        yield _case("elementwise", bf16, 2, count)
    for rows, columns in ((256, 256), (1024, 256)) if is_quick else ((64, 64), (256, 256), (1024, 256), (2048, 1024)):
        for kind in ("reduction", "column_reduction", "softmax", "transpose"):
            yield _case(kind, f32, rows, columns)
    yield _case("attention", f32, 2, 128, 4, 32)


def measure_kernels(
    devices: Sequence[jax.Device],
    cases: Sequence[KernelCase],
    *,
    limit_s: float = math.inf,
    on_progress: Progress | None = None,
) -> tuple[KernelSample, ...]:
    """Times kernels one after the other until the time is over; one that the device cannot run is left out.

    Args:
        devices: on CPU all of them compute at the same time, as they share the cores; of others the first does.
        limit_s: the seconds for all of them.
        on_progress: called as `(done, total, name)`.
    """
    end_s = time.monotonic() + limit_s
    used = devices if devices[0].platform == "cpu" else devices[:1]
    samples = []
    for number, case in enumerate(cases):
        if time.monotonic() > end_s:
            break
        sample = _measure_case(case, used)
        samples += [] if sample is None else [sample]
        if on_progress is not None:
            on_progress(number + 1, len(cases), f"{case.kind.value} {'x'.join(map(str, case.sizes))}")
    return tuple(samples)


def _measure_case(case: KernelCase, devices: Sequence[jax.Device]) -> KernelSample | None:
    function, shapes = _KERNELS[case.kind](case)
    try:
        arguments = _inputs(shapes, case.dtype, devices)
        run = _on_each_device(function, devices).lower(*arguments).compile()
        result = jax.block_until_ready(run(*arguments))
        is_async = devices[0].platform != "cpu"
        times_s = [time_runs_s(run, arguments, sample_s=_SAMPLE_S, is_async=is_async) for _ in range(_ROUNDS)]
    except (jax.errors.JaxRuntimeError, ValueError, NotImplementedError, RuntimeError):
        return None
    is_product = case.kind is KernelKind.PRODUCT
    return KernelSample(
        kind=case.kind,
        dtype=_HLO_NAMES.get(case.dtype, case.dtype),
        size_bytes=(sum(array.nbytes for array in arguments) + result.nbytes) / len(devices),
        time_s=min(times_s),
        flops=_flops(case),
        product=_product_shape(case) if is_product else None,
    )


def _inputs(shapes: Sequence[tuple[int, ...]], dtype: str, devices: Sequence[jax.Device]) -> tuple[jax.Array, ...]:
    """Returns random arrays, one of each shape on each device: the bits of numbers decide how fast some chips are."""
    sharding = NamedSharding(Mesh(np.array(devices), ("devices",)), PartitionSpec("devices"))

    def make(key: jax.Array) -> tuple[jax.Array, ...]:
        keys = jax.random.split(key, len(shapes))
        return tuple(
            jax.random.normal(one, (len(devices) * shape[0], *shape[1:]), jnp.dtype(dtype))
            for one, shape in zip(keys, shapes, strict=True)
        )

    return jax.jit(make, out_shardings=sharding)(jax.random.key(0))


def _on_each_device(function: Callable[..., Any], devices: Sequence[jax.Device]) -> Any:
    mesh = Mesh(np.array(devices), ("devices",))
    spec = PartitionSpec("devices")
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))


def _product_shape(case: KernelCase) -> ProductShape:
    batch, m, k, n = case.sizes
    return ProductShape(batch=batch, m=m, k=k, n=n)


def _flops(case: KernelCase) -> float:
    if case.kind is KernelKind.PRODUCT:
        return 2.0 * math.prod(case.sizes)
    if case.kind is KernelKind.ATTENTION:
        batch, length, heads, dim = case.sizes
        return 4.0 * batch * heads * length * length * dim
    return float(math.prod(case.sizes))


Kernel = tuple[Callable[..., Any], list[tuple[int, ...]]]


def _product(case: KernelCase) -> Kernel:
    batch, m, k, n = case.sizes

    def multiply(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return jnp.matmul(lhs, rhs, preferred_element_type=jnp.dtype(case.out_dtype))

    return multiply, [(m, k), (k, n)] if batch == 1 else [(batch, m, k), (batch, k, n)]


def _elementwise(case: KernelCase) -> Kernel:
    num_inputs, count = case.sizes

    def combine(*inputs: jax.Array) -> jax.Array:
        total = inputs[0]
        for other in inputs[1:]:
            total = total * 0.5 + other
        return (total + 1).astype(case.out_dtype)

    return combine, [(count,)] * num_inputs


def _reduction(case: KernelCase, axis: int) -> Kernel:
    def add(values: jax.Array) -> jax.Array:
        return jnp.sum(values.astype(jnp.float32), axis=axis).astype(case.out_dtype)

    return add, [case.sizes]


def _softmax(case: KernelCase) -> Kernel:
    def normalise(values: jax.Array) -> jax.Array:
        return jax.nn.softmax(values.astype(jnp.float32), axis=-1).astype(case.out_dtype)

    return normalise, [case.sizes]


def _transpose(case: KernelCase) -> Kernel:
    return lambda values: jnp.swapaxes(values, 0, 1) + 1, [case.sizes]


def _attention(case: KernelCase) -> Kernel:
    batch, length, heads, dim = case.sizes
    implementation = "cudnn" if jax.devices()[0].platform == "gpu" else "xla"

    def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        return jax.nn.dot_product_attention(query, key, value, is_causal=True, implementation=implementation)

    return attend, [(batch, length, heads, dim)] * 3


_KERNELS: dict[KernelKind, Callable[[KernelCase], Kernel]] = {
    KernelKind.PRODUCT: _product,
    KernelKind.ELEMENTWISE: _elementwise,
    KernelKind.REDUCTION: lambda case: _reduction(case, 1),
    KernelKind.COLUMN_REDUCTION: lambda case: _reduction(case, 0),
    KernelKind.SOFTMAX: _softmax,
    KernelKind.TRANSPOSE: _transpose,
    KernelKind.ATTENTION: _attention,
}
