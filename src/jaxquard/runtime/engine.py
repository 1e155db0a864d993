"""The protocol of an engine: it loads programs, runs steps of them, and holds what they return.

Two implement it: `in_process` (actors are threads of this process) and `ray` (actors are processes, here or on other
hosts). Both run the very same `Program`. `ActorMesh` is what steps, state and checkpoints need of a `RemoteMesh`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from jax.sharding import AbstractMesh

from jaxquard.errors import MeshError
from jaxquard.ir.program import Program
from jaxquard.ir.timeline import Timeline
from jaxquard.runtime.remote_array import RemoteArray

Progress = Callable[[int, int, str], None]
"""Called with (done, total, name) while calls are compiled."""


def closed_error() -> MeshError:
    """Makes the error of a mesh that is used after it was closed."""
    return MeshError("the mesh is closed. Make a new one.")


class Loaded(Protocol):
    """A program that is compiled and ready on every actor."""

    @property
    def program(self) -> Program: ...

    def place(self, value: Any, *, actor: int, number: int, is_own: bool = False) -> Any:
        """Turns a host value or an array into something to pass for input `number` of an actor.

        Args:
            is_own: nobody else may hold its memory, as the step donates it.
        """
        ...


class Running(Protocol):
    """One step under way."""

    def results(self) -> tuple[RemoteArray, ...]: ...

    def is_done(self) -> bool: ...

    def wait(self) -> None: ...

    def timeline(self) -> Timeline: ...


class Engine(Protocol):
    """The actors of a mesh.

    Attributes:
        token: an object that identifies the engine, and does not keep it alive.
        num_rematerialized: values in all programs that were loaded, that the compilers of other processes gather whole
            as they find no good way between two shardings; of this process they are on stderr (`catch_warnings`).
    """

    token: object
    num_rematerialized: int

    def load(self, program: Program, *, on_progress: Progress | None = None) -> Loaded: ...

    def execute(self, loaded: Any, inputs: Sequence[Sequence[Any]], *, measure: bool = False) -> Running: ...

    def restart(self) -> tuple[int, ...]:
        """Brings lost actors back; returns which they were."""
        ...

    def close(self) -> None: ...


class ActorMesh(Protocol):
    """The actors as steps and state see them: the part of `RemoteMesh` that modules below it use."""

    @property
    def engine(self) -> Engine: ...

    @property
    def abstract_mesh(self) -> AbstractMesh:
        """The axes of each actor's own mesh."""
        ...

    @property
    def num_actors(self) -> int: ...
