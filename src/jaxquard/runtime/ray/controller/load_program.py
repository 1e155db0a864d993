"""Loads a program onto actors that are processes: exports it here, has them compile and link it there."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from jax.sharding import AbstractMesh

from jaxquard import _jax_compat
from jaxquard.errors import ActorFailed, JaxquardError
from jaxquard.ir.program import Program, Run
from jaxquard.runtime.engine import Progress
from jaxquard.runtime.program.check_collectives import check_collectives
from jaxquard.runtime.program.link_program import check_for_actors
from jaxquard.runtime.program.step_cells import ResultLayout, find_results
from jaxquard.runtime.ray.client.packing import SharedValue
from jaxquard.runtime.ray.controller.worker_group import WorkerGroup, WorkerProcess
from jaxquard.runtime.ray.export_calls import export_call
from jaxquard.runtime.ray.messages import ProgramOrder
from jaxquard.runtime.remote_array import RemoteArray
from jaxquard.runtime.step_state import summarise
from jaxquard.runtime.transfer import as_data, is_key
from jaxquard.runtime.transports.layout import compare_layouts


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class LoadedOnRay:
    """A program that every actor has.

    Attributes:
        number: the number by which the processes know it.
        calls_of: for each actor, the calls that it runs.
        codes: for each call, its exported code.
        shared: for each call, its code as Ray keeps it for all: each is sent to Ray once.
        num_outputs: for each actor, how many cells a step fills.
        num_rematerialized: for each actor that has any, the values that the partitioner gathers whole in its calls.
    """

    number: int
    program: Program
    calls_of: tuple[tuple[int, ...], ...]
    layouts: tuple[ResultLayout, ...]
    num_outputs: tuple[int, ...]
    codes: dict[int, bytes] = field(default_factory=dict)
    shared: dict[int, SharedValue] = field(default_factory=dict)
    num_rematerialized: dict[int, int] = field(default_factory=dict)

    def find_code(self, call: int, group: WorkerGroup) -> SharedValue:
        """Returns the code of a call, which is sent to Ray once."""
        if call not in self.shared:
            self.shared[call] = group.client.share(self.codes[call])
        return self.shared[call]

    def place(self, value: Any, *, actor: int, number: int, is_own: bool = False) -> np.ndarray:
        """Turns a value into what is sent: an array in host memory, with the dtype of the slot."""
        program = self.program.actors[actor]
        dtype = program.types[program.inputs[number].slot].dtype
        data = as_data(value)
        return data if is_key(dtype) else data.astype(_jax_compat.dtype_named(dtype), copy=False)

    def results(self, cells: tuple[tuple[Any, ...], ...]) -> tuple[RemoteArray, ...]:
        return tuple(layout.make_array(cells) for layout in self.layouts)


def prepare_program(program: Program, *, number: int, num_actors: int, platform: str) -> LoadedOnRay:
    """Checks a program; nobody has it yet."""
    check_for_actors(program, num_actors=num_actors)
    check_collectives(program, platform=platform)
    return LoadedOnRay(
        number=number,
        program=program,
        calls_of=tuple(
            tuple(dict.fromkeys(i.call for i in actor.instructions if isinstance(i, Run))) for actor in program.actors
        ),
        layouts=find_results(program),
        num_outputs=tuple(len({output.slot for output in actor.outputs}) for actor in program.actors),
    )


def load_program(loaded: LoadedOnRay, *, group: WorkerGroup, mesh: AbstractMesh, on_progress: Progress | None) -> None:
    """Exports every call once, for the mesh of an actor, has the actors compile theirs side by side, and links."""
    compiling = _Compiling(loaded, group, on_progress)
    everyone = frozenset(range(len(loaded.program.actors)))
    for actor in sorted(everyone):
        compiling.prepare(actor)
    for call in _in_turns(loaded.calls_of):
        loaded.codes[call] = _export(loaded.program, call, mesh, group.config.platform)
        compiling.send(call, everyone)
        group.check_losses()
    compiling.wait()
    connect_channels(loaded, group)


def send_code(loaded: LoadedOnRay, group: WorkerGroup, actors: frozenset[int]) -> None:
    """Sends actors that were started again the code that they had."""
    compiling = _Compiling(loaded, group, None)
    for actor in sorted(actors):
        compiling.prepare(actor)
    for call in loaded.codes:
        compiling.send(call, actors)
    compiling.wait()


def connect_channels(loaded: LoadedOnRay, group: WorkerGroup) -> None:
    """Has every process open its ends, compares the layouts of the two ends of each channel, and starts them."""
    everyone = group.all_workers()
    layouts = group.gather([worker.handle.link(loaded.number) for worker in everyone])
    ends: dict[tuple[int, int, int], Any] = {}
    for worker, found in zip(everyone, layouts, strict=True):
        for (source, target), layout in found.items():
            other = ends.setdefault((source, target, worker.rank), layout)
            if other is not layout:
                sender, receiver = (other, layout) if worker.actor == target else (layout, other)
                compare_layouts(sender, receiver)
    group.gather([worker.handle.start_program(loaded.number) for worker in everyone])


class _Compiling:
    """Calls that are on their way to be compiled, and how many are done."""

    def __init__(self, loaded: LoadedOnRay, group: WorkerGroup, on_progress: Progress | None) -> None:
        self._loaded, self._group, self._on_progress = loaded, group, on_progress
        self._references: list[Any] = []
        self._jobs: list[tuple[WorkerProcess, int]] = []

    def prepare(self, actor: int) -> None:
        """Sends an actor the program, without code."""
        order = self._group.client.share(_order(self._loaded, actor))
        self._group.gather([worker.handle.prepare(order) for worker in self._group.workers[actor]])

    def send(self, call: int, actors: frozenset[int]) -> None:
        loaded = self._loaded
        for actor in sorted(actors):
            if call in loaded.calls_of[actor]:
                for worker in self._group.workers[actor]:
                    self._references.append(
                        worker.handle.compile(loaded.number, call, loaded.find_code(call, self._group))
                    )
                    self._jobs.append((worker, call))

    def wait(self) -> None:
        """Waits for all, and calls the user's `on_progress` for each."""
        num_done = 0

        def report(position: int) -> None:
            nonlocal num_done
            num_done += 1
            if self._on_progress is not None:
                name = self._loaded.program.calls[self._jobs[position][1]].name
                self._on_progress(num_done, len(self._jobs), name)

        counts = self._group.gather(self._references, report, on_error=self._explain)
        by_process: dict[tuple[int, int], int] = {}
        for (worker, _), count in zip(self._jobs, counts, strict=True):
            by_process[worker.actor, worker.rank] = by_process.get((worker.actor, worker.rank), 0) + count
        # All processes of an actor warn of the same values.
        found = self._loaded.num_rematerialized
        found.update({actor: max(found.get(actor, 0), count) for (actor, _), count in by_process.items() if count})

    def _explain(self, position: int, error: Exception) -> Exception:
        """Returns the error to raise for a call that did not compile."""
        if isinstance(error, JaxquardError):
            return error
        worker, call = self._jobs[position]
        task = self._loaded.program.calls[call].name
        failed = ActorFailed(
            f"actor {worker.actor} on {worker.host} could not compile the task {task}: {summarise(error)}."
        )
        failed.actor, failed.host, failed.task = worker.actor, worker.host, task
        failed.__cause__ = error
        return failed


def _order(loaded: LoadedOnRay, actor: int) -> ProgramOrder:
    program = loaded.program
    used = {constant.value for constant in program.actors[actor].constants}
    return ProgramOrder(
        number=loaded.number,
        program=replace(program, calls=tuple(replace(call, code=None) for call in program.calls), constants=()),
        constants={number: _constant(program.constants[number]) for number in sorted(used)},
    )


def _constant(value: Any) -> np.ndarray:
    return as_data(value)


def _export(program: Program, call: int, mesh: AbstractMesh, platform: str) -> bytes:
    entry = program.calls[call]
    adds_witness = platform != "cpu" or not entry.outputs
    return export_call(entry, mesh=mesh, platform={"gpu": "cuda"}.get(platform, platform), adds_witness=adds_witness)


def _in_turns(calls_of: tuple[tuple[int, ...], ...]) -> list[int]:
    """Orders all calls, the first of each actor first, so that every actor soon has something to compile."""
    longest = max(map(len, calls_of), default=0)
    turns = (calls[k] for k in range(longest) for calls in calls_of if k < len(calls))
    return list(dict.fromkeys(turns))
