"""What a runtime is to the rest: it loads programs, runs steps of them, and holds what they return.

Two implement it: `in_process` (actors are threads of this process) and `ray` (actors are processes, here or on other
hosts). Both run the very same `Program`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from jax.sharding import AbstractMesh

from jaxquard.ir.program import Program
from jaxquard.ir.timeline import Timeline
from jaxquard.runtime.remote_array import RemoteArray

Progress = Callable[[int, int, str], None]
"""Called with (done, total, name) while calls are compiled."""


class Loaded(Protocol):
    """A program that is compiled and ready on every actor."""

    @property
    def program(self) -> Program: ...

    def place(self, value: Any, *, actor: int, number: int, is_own: bool = False) -> Any:
        """A host value or an array as something to pass for input `number` of an actor.

        Args:
            is_own: nobody else may hold its memory, as the step takes it.
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
    """

    token: object

    def load(self, program: Program, *, on_progress: Progress | None = None) -> Loaded: ...

    def execute(self, loaded: Any, inputs: Sequence[Sequence[Any]], *, measure: bool = False) -> Running: ...

    def restart(self) -> tuple[int, ...]:
        """Brings lost actors back; returns which they were."""
        ...

    def close(self) -> None: ...


class ActorMesh(Protocol):
    """The actors as steps and state see them. `RemoteMesh` is one; what stands below it asks for no more."""

    @property
    def engine(self) -> Engine: ...

    @property
    def abstract_mesh(self) -> AbstractMesh:
        """The axes of each actor's own mesh."""
        ...

    @property
    def num_actors(self) -> int: ...
