"""The jobs of the processes of a `WorkerGroup`: values that both ends can compute, and patterns of messages."""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxquard import _jax_compat
from jaxquard.ir.array_type import ArrayType
from jaxquard.runtime.transfer import sharding_on
from jaxquard.runtime.transports.layout import compare_layouts
from jaxquard.runtime.transports.protocol import Channel
from tests.runtime.transports.worker_group import WorkerGroup, WorkerProcess

SEND, RECV = "send", "recv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """Messages in their global order, and what each actor does: (send or recv, peer, number) in its order."""

    channels: tuple[Channel, ...]
    actions: tuple[tuple[tuple[str, int, int], ...], ...]


def make_pattern(
    messages: Sequence[tuple[int, int, tuple[ArrayType, ...]]],
    *,
    num_actors: int,
    may_donate: bool = False,
    delay: random.Random | None = None,
) -> Pattern:
    """The pattern of (source, target, types) in this global order.

    Receives are as early as possible, or, with `delay`, after some later sends of the same actor, and in
    another order between peers.
    """
    channels: dict[tuple[int, int], list[tuple[int, tuple[ArrayType, ...]]]] = {}
    actions: list[list[tuple[str, int, int]]] = [[] for _ in range(num_actors)]
    pending: list[dict[int, list[int]]] = [{} for _ in range(num_actors)]

    def flush(actor: int) -> None:
        while pending[actor]:
            peers = sorted(pending[actor])
            peer = delay.choice(peers) if delay else peers[0]
            actions[actor].append((RECV, peer, pending[actor][peer].pop(0)))
            if not pending[actor][peer]:
                del pending[actor][peer]

    for order, (source, target, types) in enumerate(messages):
        if delay is None or delay.random() < 0.5:
            flush(source)
        channel = channels.setdefault((source, target), [])
        actions[source].append((SEND, target, len(channel)))
        pending[target].setdefault(source, []).append(len(channel))
        channel.append((order, types))
    for actor in range(num_actors):
        flush(actor)
    return Pattern(
        channels=tuple(
            Channel(
                source=source,
                target=target,
                messages=tuple(types for _, types in found),
                orders=tuple(order for order, _ in found),
                may_donate=(may_donate,) * len(found),
            )
            for (source, target), found in channels.items()
        ),
        actions=tuple(map(tuple, actions)),
    )


def expected(type_: ArrayType, seed: Any) -> np.ndarray:
    """The values that an array has, known to both ends; of keys, their data."""
    generator = random.Random(str(seed))
    offset = generator.randrange(1000)
    if type_.dtype.startswith("key<"):
        width = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), _jax_compat.dtype_named(type_.dtype)))
        return (
            (np.arange(np.prod((*type_.shape, *width.shape), dtype=int)) + offset)
            .astype(np.uint32)
            .reshape((*type_.shape, *width.shape))
        )
    count = np.arange(np.prod(type_.shape, dtype=int)) + offset
    return (
        (count % (2 if type_.dtype == "bool" else 100))
        .astype(_jax_compat.dtype_named(type_.dtype))
        .reshape(type_.shape)
    )


def make_value(type_: ArrayType, mesh: Mesh, seed: Any) -> jax.Array:
    whole = expected(type_, seed)
    is_key = type_.dtype.startswith("key<")
    sharding = _data_sharding(type_, mesh, whole.ndim) if is_key else sharding_on(mesh, type_)
    data = jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])
    return jax.random.wrap_key_data(data, impl=_jax_compat.key_implementation(type_.dtype)) if is_key else data


def check_value(array: jax.Array, type_: ArrayType, mesh: Mesh, seed: Any) -> None:
    sharding = sharding_on(mesh, type_)
    # JAX itself writes the sharding of keys in another form.
    is_same = (
        array.sharding.is_equivalent_to(sharding, array.ndim) if "key" in type_.dtype else array.sharding == sharding
    )
    assert is_same, (array.sharding, type_)
    assert (array.dtype.name, array.shape) == (type_.dtype, type_.shape)
    data = jax.random.key_data(array) if type_.dtype.startswith("key<") else array
    assert data.is_ready()
    whole = expected(type_, seed)
    for shard in data.addressable_shards:
        np.testing.assert_array_equal(np.asarray(shard.data), whole[shard.index], err_msg=f"{type_} {seed}")


def _data_sharding(type_: ArrayType, mesh: Mesh, ndim: int) -> NamedSharding:
    spec = tuple(axes or None for axes in type_.spec)
    return NamedSharding(mesh, PartitionSpec(*spec, *[None] * (ndim - len(spec))))


def load(group: WorkerGroup, pattern: Pattern, mesh_shape: tuple[int, ...], *, program_id: int) -> None:
    """Opens the channels of a pattern in all processes, and compares what both ends say."""
    layouts = group.run(open_channels, pattern, mesh_shape, program_id)
    count = len(layouts) // len(pattern.actions)
    for channel in pattern.channels:
        for rank in range(count):
            ends = [
                layouts[actor * count + rank][channel.source, channel.target]
                for actor in (channel.source, channel.target)
            ]
            compare_layouts(*ends)
    group.run(start, program_id)


def open_channels(
    worker: WorkerProcess, pattern: Pattern, mesh_shape: tuple[int, ...], program_id: int
) -> dict[Any, Any]:
    mesh = worker.mesh(mesh_shape)
    senders, receivers, transport = {}, {}, worker.transport
    for channel in pattern.channels:
        if channel.source == worker.actor:
            senders[channel.target] = transport.open_sender(channel, program_id=program_id, mesh=mesh)
        if channel.target == worker.actor:
            receivers[channel.source] = transport.open_receiver(channel, program_id=program_id, mesh=mesh)
    worker.store[f"program {program_id}"] = (pattern, mesh, senders, receivers)
    sent = {(worker.actor, target): end.layout for target, end in senders.items()}
    return sent | {(source, worker.actor): end.layout for source, end in receivers.items()}


def start(worker: WorkerProcess, program_id: int) -> None:
    worker.transport.start(program_id)


def never() -> bool:
    return False


def run_steps(worker: WorkerProcess, steps: Sequence[tuple[int, int]]) -> float:
    """Plays the patterns of (program id, step) one after another; the seconds it took."""
    start_s = time.perf_counter()
    for program_id, step in steps:
        _run_step(worker, program_id, step)
    return time.perf_counter() - start_s


def _run_step(worker: WorkerProcess, program_id: int, step: int) -> None:
    pattern, mesh, senders, receivers = worker.store[f"program {program_id}"]
    types = {(channel.source, channel.target): channel.messages for channel in pattern.channels}
    for receiver in receivers.values():
        receiver.begin(step)
    received = []
    for kind, peer, number in pattern.actions[worker.actor]:
        ends = (worker.actor, peer) if kind == SEND else (peer, worker.actor)
        seeds = [(program_id, step, *ends, number, position) for position in range(len(types[ends][number]))]
        if kind == SEND:
            values = [make_value(t, mesh, seed) for t, seed in zip(types[ends][number], seeds, strict=True)]
            senders[peer].send(step, number, values)
        else:
            values = receivers[peer].recv(step, number, should_stop=never)
            received.append((values, types[ends][number], seeds))
    for values, message, seeds in received:
        for value, type_, seed in zip(values, message, seeds, strict=True):
            check_value(value, type_, mesh, seed)
