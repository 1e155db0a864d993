"""The time of actors relative to a schedule's ideal: 4 actors x 2 devices, tasks that sleep, 40 microbatches.

A task sleeps 10 ms on each device in a host callback, so that nothing depends on the number of cores; a backward sleeps
as long as a forward. The ideal is the simulated schedule with these times and free transfers. It leaves out the cost of
a callback besides its sleep, so the time of one task alone is printed too.
"""

import functools
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import jaxquard as jq
from benchmarks.measure import format_time
from jaxquard.schedules import TaskTimes, play_rows

NUM_STAGES, NUM_MICROBATCHES, TASK_S = 4, 40, 10e-3
TARGET = 1.15


def _sleep(array):
    time.sleep(TASK_S)
    return np.asarray(array)


def _sleep_on_each_device(array):
    # Under shard_map every device makes the callback with its own shard.
    call = lambda share: jax.pure_callback(_sleep, jax.ShapeDtypeStruct(share.shape, share.dtype), share)  # noqa: E731
    return jax.shard_map(call, in_specs=PartitionSpec("data"), out_specs=PartitionSpec("data"))(array)


@jax.custom_vjp
def sleep_both_ways(array):
    return _sleep_on_each_device(array)


sleep_both_ways.defvjp(
    lambda array: (_sleep_on_each_device(array), None),
    lambda _, cotangent: (_sleep_on_each_device(cotangent),),
)


def train_step(params, batch, *, schedule):
    def loss_fn(params, x):
        for stage, weight in enumerate(params):
            x = sleep_both_ways(x * weight)
            if stage < NUM_STAGES - 1:
                x = jq.pipeline_yield(x)
        return jnp.sum(x)

    def microbatch_grads(x):
        value, grads = jax.value_and_grad(loss_fn)(params, x)
        return grads, value

    return jq.accumulate_grads(microbatch_grads, schedule)(batch)


def main() -> None:
    jax.config.update("jax_platforms", "cpu")
    schedule = jq.schedules.OneFOneB(NUM_STAGES)
    times = TaskTimes(forward_s=TASK_S, input_gradient_s=TASK_S, weight_gradient_s=0.0, transfer_s=0.0)
    ideal_s = play_rows(schedule.rows(NUM_MICROBATCHES), times).makespan_s
    mesh = jq.RemoteMesh((NUM_STAGES,), spmd_mesh=(2,), spmd_axis_names=("data",))
    step = mesh.distributed(
        functools.partial(train_step, schedule=schedule), in_shardings=(None, PartitionSpec(None, "data"))
    )
    params = [jnp.full((), 1.0) for _ in range(NUM_STAGES)]
    batch = jnp.ones((NUM_MICROBATCHES, 8))
    jax.block_until_ready(step(params, batch))
    spent_s = []
    for _ in range(5):
        start_s = time.perf_counter()
        jax.block_until_ready(step(params, batch))
        spent_s.append(time.perf_counter() - start_s)
    ratio = min(spent_s) / ideal_s
    median = sorted(spent_s)[2] / ideal_s
    print(f"{schedule!r}, {NUM_MICROBATCHES} microbatches, {NUM_STAGES} actors x 2 devices")
    print(f"ideal {format_time(ideal_s)}, minimum {format_time(min(spent_s))}, ratio {ratio:.3f} (median {median:.3f})")
    print(f"at most {TARGET:.2f}: {'kept' if ratio <= TARGET else 'missed'}")
    alone_s = time_alone(mesh)
    print(f"one task alone, nothing else running: {format_time(alone_s)}; ", end="")
    print(f"against the ideal with tasks of that length: {min(spent_s) / (ideal_s * alone_s / TASK_S):.3f}")


def time_alone(mesh) -> float:
    """The median time of one task on one actor's devices, callbacks included."""
    sharding = NamedSharding(mesh.meshes[0], PartitionSpec("data"))
    with jax.set_mesh(mesh.meshes[0]):
        task = jax.jit(_sleep_on_each_device, in_shardings=sharding, out_shardings=sharding)
        array = jax.device_put(np.ones(8, np.float32), sharding)
        task(array).block_until_ready()
        spent_s = []
        for _ in range(20):
            start_s = time.perf_counter()
            task(array).block_until_ready()
            spent_s.append(time.perf_counter() - start_s)
    return sorted(spent_s)[10]


if __name__ == "__main__":
    main()
