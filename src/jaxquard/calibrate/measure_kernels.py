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

Progress = Callable[[int, int, str], None]

_ROUNDS, _SAMPLE_S = 3, 0.01
_HLO_NAMES = {"bfloat16": "bf16", "float32": "f32", "float16": "f16"}


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
