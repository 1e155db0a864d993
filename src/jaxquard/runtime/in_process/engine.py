"""The engine that runs programs on actors of this process (design decisions 2 to 4; JaxPP, section 4).

As in JaxPP, one controller gives every actor its whole list at once, and the actors coordinate through
sends and receives alone. Unlike there, an actor is a thread with a mesh, and a send is a transfer in memory.

    engine = InProcessEngine([mesh0, mesh1])
    loaded = engine.load(program)
    run = engine.execute(loaded, inputs)      # returns at once; several steps may be queued
    new_state = run.results()                 # handles: pass them to the next step, or fetch them

Each actor has a thread, but for programs of tiny tasks one thread feeds all actors: see `pace`.

Two actors on the same devices launch from two threads. If one device gets A then B and another B then A, a
collective in A waits on the first device for the second, which waits in B for the first: a deadlock. So
launches of multi-device calls on shared devices take turns (`guard_launches`). On CPU a call must also have ended
before the next one starts: a client seems to have about as many threads as devices, and see `program.actor` for what
follows.
"""

import queue
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from jaxquard.ir.program import Program
from jaxquard.ir.timeline import Timeline
from jaxquard.runtime.checkpoint.array_store import InProcessStore
from jaxquard.runtime.engine import Progress, closed_error
from jaxquard.runtime.in_process.pace import Pace
from jaxquard.runtime.program.actor import Actor, Feeder, halt
from jaxquard.runtime.program.check_collectives import check_collectives
from jaxquard.runtime.program.compile_calls import Executable, Site, compile_calls
from jaxquard.runtime.program.link_program import ActorList, check_for_actors, link_program
from jaxquard.runtime.program.list_run import JointRun, ListRun
from jaxquard.runtime.program.step_cells import ResultLayout, find_results, find_sources, take_donated
from jaxquard.runtime.program.timings import ActorClock, make_timeline
from jaxquard.runtime.remote_array import RemoteArray
from jaxquard.runtime.result_cell import ResultCell
from jaxquard.runtime.step_state import StepState
from jaxquard.runtime.transfer import copy_array, place


def guard_launches(executable: Executable, lock: threading.Lock) -> Executable:
    """The executable, launched under a lock, on CPU until it has ended."""

    def launch(*args: Any) -> list[jax.Array]:
        with lock:
            outputs = executable(*args)
            if outputs and next(iter(outputs[-1].devices())).platform == "cpu":
                outputs[-1].block_until_ready()
        return outputs

    return launch


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedProgram:
    """A program, compiled and linked for the engine that loaded it.

    Attributes:
        input_shardings: for each actor and each of its inputs, the sharding that the slot has.
    """

    program: Program
    lists: tuple[ActorList, ...]
    layouts: tuple[ResultLayout, ...]
    pace: Pace

    def place(self, value: Any, *, actor: int, number: int, is_own: bool = False) -> jax.Array:
        """A value with the sharding of an input; see `engine.Loaded`."""
        placed = place(value, self.lists[actor].inputs[number].sharding)
        return copy_array(placed) if is_own else placed

    @property
    def input_shardings(self) -> tuple[tuple[NamedSharding, ...], ...]:
        return tuple(tuple(item.sharding for item in list_.inputs) for list_ in self.lists)


# How many steps may be queued before a call waits for the oldest.
_MAX_QUEUED = 4


def with_checks_of_caller(job: Callable[[Feeder], None]) -> Callable[[Feeder], None]:
    """Lets a job check values as the calling thread does: `with jax.debug_nans(True):` holds for that thread alone."""
    nans, infs = _checks()

    def run(feeder: Feeder) -> None:
        if (nans, infs) == _checks():
            job(feeder)
            return
        with jax.debug_nans(nans), jax.debug_infs(infs):
            job(feeder)

    return run


def _checks() -> tuple[bool, bool]:
    config: Any = jax.config
    return config.jax_debug_nans, config.jax_debug_infs


class InProcessEngine:
    """Actors of this process, one mesh and one thread each.

    Threads start with the first step and end when the engine is closed, garbage collected or the interpreter
    exits.

    Args:
        meshes: one for each actor. Actors may share devices (several on one GPU).
    """

    def __init__(self, meshes: Sequence[Mesh]) -> None:
        uses = Counter(device for mesh in meshes for device in mesh.devices.flat)
        self.actors = tuple(
            Actor(index=index, mesh=mesh, shares_devices=any(uses[device] > 1 for device in mesh.devices.flat))
            for index, mesh in enumerate(meshes)
        )
        self._sites = tuple(Site(mesh=actor.mesh, has_witness=actor.platform != "cpu") for actor in self.actors)
        self._num_users = uses
        self._launch_lock = threading.Lock()
        self._lock = threading.Lock()
        self._queued: deque[StepState] = deque()
        self.token: object = InProcessStore(dict(enumerate(meshes)))
        self.num_rematerialized = 0
        self._was_together = False
        self._last_state: StepState | None = None
        self._finalizer = weakref.finalize(self, halt, tuple(actor.feeder for actor in self.actors))

    @property
    def meshes(self) -> tuple[Mesh, ...]:
        return tuple(actor.mesh for actor in self.actors)

    def load(self, program: Program, *, on_progress: Progress | None = None) -> LoadedProgram:
        """Checks, compiles and links a program.

        Args:
            on_progress: called with (done, total, name of the call) as executables get ready.

        Raises:
            ProgramError: if the program breaks a rule of the instruction list.
            MeshError: if it is for another number of actors, or uses a collective that their platform has not.
        """
        check_for_actors(program, num_actors=len(self.actors))
        check_collectives(program, platform=self.meshes[0].devices.flat[0].platform)
        executables = compile_calls(program, self._sites, on_progress=on_progress)
        executables = {key: self._guard(key[1], executable) for key, executable in executables.items()}
        return LoadedProgram(
            program=program,
            lists=link_program(program, self._sites, executables),
            layouts=find_results(program),
            pace=Pace(program, can_be_together=all(actor.is_in_place for actor in self.actors)),
        )

    def execute(
        self,
        loaded: LoadedProgram,
        inputs: Sequence[Sequence[jax.Array | ResultCell]],
        *,
        measure: bool = False,
    ) -> "StepRun":
        """Queues one step on every actor and returns at once.

        Args:
            inputs: `inputs[actor][k]` is for `program.actors[actor].inputs[k]`: a cell of any actor, or an
                array. What does not have the slot's sharding is brought to it by the actor, so it is best
                placed before (`transfer.place` with `loaded.input_shardings`). Cells of arguments that the
                program donates are deleted at once; arrays are deleted when a task donates them.
            measure: records when everything runs, for `StepRun.timeline`.

        Raises:
            DeletedArrayError: if a cell was donated before, or is donated and passed twice.
        """
        self._make_room()
        with self._lock:
            if not self._finalizer.alive:
                raise closed_error()
            shared_cells = take_donated(loaded.program, inputs, ResultCell)
            state = StepState(num_actors=len(self.actors), sources=find_sources(inputs, ResultCell), owner=self.token)
            cells = tuple(
                tuple(ResultCell(actor=list_.actor, step=state) for _ in list_.outputs) for list_ in loaded.lists
            )
            clocks = tuple(ActorClock(waits_in_place=a.platform == "cpu") for a in self.actors) if measure else ()
            channels = {
                (list_.actor, target): queue.SimpleQueue() for list_ in loaded.lists for target in list_.targets
            }
            is_together = not measure and loaded.pace.is_together()
            after = self._last_state if is_together != self._was_together else None
            runs = tuple(
                ListRun(
                    actor_list=list_,
                    is_in_place=actor.is_in_place,
                    fastest_s=loaded.pace.fastest_s[actor.index],
                    state=state,
                    after=after,
                    inputs=tuple(inputs[actor.index]),
                    cells=cells[actor.index],
                    shared_cells=shared_cells,
                    channels=channels,
                    clock=clocks[actor.index] if measure else None,
                    engine=self,
                )
                for actor, list_ in zip(self.actors, loaded.lists, strict=True)
            )
            self._submit(runs, is_together=is_together)
            self._last_state = state
            self._queued.append(state)
        return StepRun(loaded=loaded, state=state, cells=cells, clocks=clocks)

    def _make_room(self) -> None:
        """Waits while the maximum number of steps is queued: each holds its inputs and results."""
        while True:
            with self._lock:
                while self._queued and self._queued[0].is_finished:
                    self._queued.popleft()
                oldest = self._queued[0] if len(self._queued) >= _MAX_QUEUED else None
            if oldest is None:
                return
            oldest.wait_finished()

    def _guard(self, site: Site, executable: Executable) -> Executable:
        shared = any(self._num_users[device] > 1 for device in site.mesh.devices.flat)
        return guard_launches(executable, self._launch_lock) if shared and site.mesh.size > 1 else executable

    def _submit(self, runs: tuple[ListRun, ...], *, is_together: bool) -> None:
        self._was_together = is_together
        if is_together:
            self.actors[0].feeder.submit(with_checks_of_caller(JointRun(runs)))
            return
        for actor, run in zip(self.actors, runs, strict=True):
            actor.feeder.submit(with_checks_of_caller(run))

    def restart(self) -> tuple[int, ...]:
        """Does nothing: actors of this process live as long as it does."""
        return ()

    def close(self) -> None:
        """Ends the threads; steps still queued fail. Results that are there can still be read."""
        self._finalizer()


class StepRun:
    """One step under way.

    Attributes:
        cells: for each actor, one cell for each slot among its outputs, in their order.
    """

    def __init__(
        self,
        *,
        loaded: LoadedProgram,
        state: StepState,
        cells: tuple[tuple[ResultCell, ...], ...],
        clocks: tuple[ActorClock, ...],
    ) -> None:
        self.cells = cells
        self._loaded = loaded
        self._state = state
        self._clocks = clocks

    def results(self) -> tuple[RemoteArray, ...]:
        """Returns the flat results, each joined from its parts and copies."""
        return tuple(layout.make_array(self.cells) for layout in self._loaded.layouts)

    def is_done(self) -> bool:
        """Returns True once every task has ended."""
        return self._state.is_finished

    def wait(self) -> None:
        """Waits until every task has ended.

        Raises:
            TaskFailed: if one failed; the message names it and says whether donated state is still there.
        """
        self._state.wait_finished()
        self._state.raise_error()

    def timeline(self) -> Timeline:
        """Waits for the step and returns when everything ran; needs `execute(..., measure=True)`."""
        assert self._clocks, "the step was not measured: pass measure=True to execute"
        self.wait()
        for clock in self._clocks:
            clock.close()
        return make_timeline(self._loaded.program, self._clocks)
