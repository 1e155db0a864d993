"""Messages between the controller and the processes of the actors. All of them can be pickled.

They cross packed (`client.packing`), as bytes, which Ray passes on as they are: with its own pickle of such objects a
step of 4 actors took four times as long.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxquard.ir.program import Program
from jaxquard.runtime.transports.protocol import TransportReport


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """The configuration of a process, needed before JAX starts in it.

    Attributes:
        rank: which of the actor's processes it is.
        settings: settings of JAX that the controller has and that matter there: names and values.
        environment: variables to set before a backend starts, such as XLA_FLAGS.
    """

    actor: int
    num_actors: int
    rank: int
    num_processes: int
    platform: str
    num_devices: int
    mesh_shape: tuple[int, ...]
    axis_names: tuple[str, ...]
    transport: str
    settings: tuple[tuple[str, Any], ...] = ()
    environment: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """The description of a process, once it is up.

    Attributes:
        boot: the same for processes on one kernel, which share a monotonic clock.
        log_paths: the files of its standard output and error.
        activity_path: the file that says what it is doing.
        num_oom_kills: how many processes its host's kernel has killed for their memory so far.
    """

    host: str
    ip: str
    node_id: str
    pid: int
    boot: str
    log_paths: tuple[str, ...]
    activity_path: str
    num_oom_kills: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramOrder:
    """A program without its code, for the processes to link.

    Attributes:
        constants: by number, those that the actor uses.
    """

    number: int
    program: Program
    constants: dict[int, np.ndarray]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOrder:
    """One actor's part of one step.

    Attributes:
        turn: its place among all that the actor does in order, and the epoch in which that counts.
        inputs: for each input the number of a cell, or a value.
        outputs: the number of the first cell; the others follow.
        frees: cells that nobody holds any more.
    """

    program: int
    step: int
    turn: "Turn"
    inputs: tuple[Any, ...]
    outputs: int
    frees: tuple[int, ...]
    measure: bool = False


@dataclass(frozen=True, slots=True, order=True)
class Turn:
    """The place of an action in an actor's order: after everything with a lower number of the same epoch.

    A failure ends an epoch: what has not started then never does.
    """

    epoch: int
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFailure:
    """A task that failed in another process, as text, with the last lines of the process's log."""

    order: int
    task: str
    kind: str
    message: str
    traceback: str
    log: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockReport:
    """Seconds on the process's own clock: by instruction, and for each source the arrivals of messages by number."""

    dispatches: dict[int, float]
    ends: dict[int, float]
    arrivals: dict[int, dict[int, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReply:
    """The outcome of a step on one process.

    Attributes:
        is_complete: whether it ran to its end.
        is_intact: whether every donated input is still there.
        kept: donated cells that are still there although the step failed.
        values: small outputs, by the number of their cell.
    """

    is_complete: bool
    is_intact: bool = True
    failure: RemoteFailure | None = None
    kept: tuple[int, ...] = ()
    values: dict[int, np.ndarray] | None = None
    clock: ClockReport | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """An answer that shows that a process is alive.

    Attributes:
        time_s: the process's clock.
        activity: the task that it runs, or what else it does.
        report: the progress of its messages.
    """

    time_s: float
    activity: str
    report: TransportReport | None = None


Shard = tuple[tuple[tuple[int, int], ...], np.ndarray]


def join_shards(by_process: Sequence[Sequence[Shard]]) -> np.ndarray:
    """Joins an array from the shards of each process, which come with their bounds along each dim."""
    shards = [shard for shards in by_process for shard in shards]
    index, data = shards[0]
    if all(other == index for other, _ in shards):
        return data if data.flags.writeable else np.array(data)
    shape = tuple(max(index[dim][1] for index, _ in shards) for dim in range(len(index)))
    whole = np.empty((*shape, *data.shape[len(shape) :]), data.dtype)
    for index, part in shards:
        whole[tuple(slice(*bounds) for bounds in index)] = part
    return whole
