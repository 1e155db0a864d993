"""Times products on one device, whole and sliced along the contracted dim.

As in MeshSlice where the output stays: bf16 slices are multiplied one after another, summed in fp32, and the sum is
cast to bf16.
"""

import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from jaxquard.calibrate.sampling import Effort, time_runs_s
from jaxquard.cluster import ProductSample
from jaxquard.pricing.values.make_values import make_array

Progress = Callable[[int, int, str], None]


def measure_products(
    device: jax.Device, effort: Effort, *, on_progress: Progress | None = None
) -> tuple[ProductSample, ...]:
    """Returns samples of every shape of the effort at every slice count."""
    shapes = list(itertools.product(effort.ms, effort.ks, effort.ns))
    samples: list[ProductSample] = []
    for number, (m, k, n) in enumerate(shapes):
        samples += _measure_shape(device, effort, m=m, k=k, n=n)
        if on_progress is not None:
            on_progress(number + 1, len(shapes), f"({m}, {k}, {n})")
    return tuple(samples)


def sliced_product(lhs_SMK: jax.Array, rhs_SKN: jax.Array) -> jax.Array:
    """Sums the products of slices, which are stacked along the first dim."""
    total_MN = jnp.dot(lhs_SMK[0], rhs_SKN[0], preferred_element_type=jnp.float32)
    for number in range(1, lhs_SMK.shape[0]):
        total_MN = total_MN + jnp.dot(lhs_SMK[number], rhs_SKN[number], preferred_element_type=jnp.float32)
    return total_MN.astype(lhs_SMK.dtype)


def _measure_shape(device: jax.Device, effort: Effort, *, m: int, k: int, n: int) -> list[ProductSample]:
    """Measures slice counts in turns, so that a disturbance of the machine affects all of them."""
    runs, sharding = {}, SingleDeviceSharding(device)
    with jax.default_device(device):
        for count in effort.slices:
            shapes = (count, m, k // count), (count, k // count, n)
            lhs, rhs = (make_array(jax.ShapeDtypeStruct(shape, jnp.bfloat16), sharding) for shape in shapes)
            runs[count] = (jax.jit(sliced_product).lower(lhs, rhs).compile(), (lhs, rhs))
        times_s = dict.fromkeys(effort.slices, float("inf"))
        for _ in range(effort.rounds):
            for count, (run, arguments) in runs.items():
                jax.block_until_ready(run(*arguments))
                time_s = time_runs_s(run, arguments, sample_s=effort.sample_s, is_async=device.platform != "cpu")
                times_s[count] = min(times_s[count], time_s)
    return [ProductSample(m=m, k=k, n=n, num_slices=count, time_s=time_s) for count, time_s in times_s.items()]
