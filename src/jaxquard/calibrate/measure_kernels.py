"""Times the kernels that compiled programs consist of, on one device.

Products of many shapes and types, passes over memory, reductions and attention. Small kernels are left out on an
accelerator: a run of one takes as long as the host needs to start it.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxquard.calibrate.kernel_cases import KernelCase
from jaxquard.calibrate.sampling import time_runs_s
from jaxquard.cluster import KernelKind, KernelSample, ProductShape
from jaxquard.hlo.work.arithmetic import COSTLY_ARITHMETIC
from jaxquard.pricing.values.make_values import make_array

Progress = Callable[[int, int, str], None]

# For so long that the clock of an accelerator settles.
_ROUNDS, _SAMPLE_S, _CPU_SAMPLE_S = 3, 0.1, 0.01
# Further copies of a kernel in a program on CPU.
_COPIES = 4
# On an accelerator, in times of starting a program.
_SHORTEST = 2.0
_HLO_NAMES = {"bfloat16": "bf16", "float32": "f32", "float16": "f16"}


def measure_kernels(
    devices: Sequence[jax.Device],
    cases: Sequence[KernelCase],
    *,
    limit_s: float = math.inf,
    on_progress: Progress | None = None,
) -> tuple[KernelSample, ...]:
    """Times kernels one after the other until the time is over.

    One that the device cannot run is left out, and so is one that takes an accelerator hardly longer than the host
    needs to start it.

    Args:
        devices: on CPU all of them compute at the same time, as they share the cores; of others the first does.
        limit_s: the seconds for all of them.
        on_progress: called as `(done, total, name)`.
    """
    end_s = time.monotonic() + limit_s
    is_cpu = devices[0].platform == "cpu"
    used = devices if is_cpu else devices[:1]
    shortest_s = 0.0 if is_cpu else _SHORTEST * _start_s(used)
    samples = []
    for number, case in enumerate(cases):
        if time.monotonic() > end_s:
            break
        sample = _measure_case(case, used)
        samples += [] if sample is None or sample.time_s < shortest_s else [sample]
        if on_progress is not None:
            on_progress(number + 1, len(cases), f"{case.kind.value} {'x'.join(map(str, case.sizes))}")
    return tuple(samples)


def _start_s(devices: Sequence[jax.Device]) -> float:
    """Returns the seconds that the host needs for each of many programs that do nearly nothing."""
    time_s, _ = _time_copies(lambda values: values + 1, [(8,)], "float32", devices, count=1)
    return time_s


def _measure_case(case: KernelCase, devices: Sequence[jax.Device]) -> KernelSample | None:
    """Times a kernel.

    On CPU the time to start a program on all devices is many times that of a small kernel, so programs with one kernel
    and with several are timed, and their difference counts. An accelerator starts the next one meanwhile.
    """
    function, shapes = _KERNELS[case.kind](case)
    is_cpu = devices[0].platform == "cpu"
    try:
        one_s, size_bytes = _time_copies(function, shapes, case.dtype, devices, count=1)
        time_s = one_s
        if is_cpu:
            many_s, _ = _time_copies(function, shapes, case.dtype, devices, count=1 + _COPIES)
            # On a busy machine the difference may be nothing; a kernel then takes its part of them all.
            time_s = max((many_s - one_s) / _COPIES, 0.5 * many_s / (1 + _COPIES))
    except (jax.errors.JaxRuntimeError, ValueError, NotImplementedError, RuntimeError, MemoryError):
        return None
    return KernelSample(
        kind=case.kind,
        dtype=_HLO_NAMES.get(case.dtype, case.dtype),
        size_bytes=size_bytes,
        time_s=time_s,
        flops=_flops(case),
        product=_product_shape(case) if case.kind is KernelKind.PRODUCT else None,
    )


def _time_copies(
    function: Callable[..., Any],
    shapes: Sequence[tuple[int, ...]],
    dtype: str,
    devices: Sequence[jax.Device],
    *,
    count: int,
) -> tuple[float, float]:
    """Returns the seconds of a program with so many copies of a kernel, each of other arrays, and the bytes of one."""
    arguments = _inputs([*shapes] * count, dtype, devices)

    def run_all(*inputs: jax.Array) -> list[jax.Array]:
        width = len(shapes)
        return [function(*inputs[start : start + width]) for start in range(0, len(inputs), width)]

    run = _on_each_device(run_all, devices).lower(*arguments).compile()
    results = jax.block_until_ready(run(*arguments))
    is_async = devices[0].platform != "cpu"
    times_s = [
        time_runs_s(run, arguments, sample_s=_SAMPLE_S if is_async else _CPU_SAMPLE_S, is_async=is_async)
        for _ in range(_ROUNDS)
    ]
    size_bytes = sum(array.nbytes for array in (*arguments, *results)) / len(devices) / count
    return min(times_s), size_bytes


def _inputs(shapes: Sequence[tuple[int, ...]], dtype: str, devices: Sequence[jax.Device]) -> tuple[jax.Array, ...]:
    """Returns arrays, one of each shape on each device."""
    sharding = NamedSharding(Mesh(np.array(devices), ("devices",)), PartitionSpec("devices"))
    whole = [(len(devices) * shape[0], *shape[1:]) for shape in shapes]
    return tuple(make_array(jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)), sharding) for shape in whole)


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
    if case.kind is KernelKind.ELEMENTWISE:
        num_inputs, count, num_costly = case.sizes
        return float(count * (2 * num_inputs - 1 + COSTLY_ARITHMETIC * num_costly))
    return float(math.prod(case.sizes))


Kernel = tuple[Callable[..., Any], list[tuple[int, ...]]]


def _product(case: KernelCase) -> Kernel:
    batch, m, k, n = case.sizes

    def multiply(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return jnp.matmul(lhs, rhs, preferred_element_type=jnp.dtype(case.out_dtype))

    return multiply, [(m, k), (k, n)] if batch == 1 else [(batch, m, k), (batch, k, n)]


def _elementwise(case: KernelCase) -> Kernel:
    num_inputs, count, num_costly = case.sizes

    def combine(*inputs: jax.Array) -> jax.Array:
        total = inputs[0]
        for other in inputs[1:]:
            total = total * 0.5 + other
        for _ in range(num_costly):
            total = jnp.tanh(total)
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
