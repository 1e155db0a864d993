"""A task as code: the values that it takes and gives, and when an actor runs it."""

from dataclasses import dataclass

from jaxquard.ir.jaxpr_tools import Jaxpr, Var


@dataclass(frozen=True, slots=True)
class Outer:
    """A value outside the loops; there is one of it in a step."""

    var: Var


@dataclass(frozen=True, slots=True)
class Local:
    """A value inside a loop; there is one of it for each microbatch."""

    loop: int
    var: Var


@dataclass(frozen=True, slots=True)
class Index:
    """The number of the microbatch."""


@dataclass(frozen=True, slots=True)
class Total:
    """An accumulator of a loop."""

    loop: int
    target: int


@dataclass(frozen=True, slots=True)
class Carried:
    """A carried value of a loop: a task takes that of its microbatch and makes that of the next."""

    loop: int
    target: int


Value = Outer | Local | Index | Total | Carried


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskCode:
    """One piece of code and the values it works on.

    Attributes:
        name: `stage0_FB`, `after.1`.
        inputs: where each input of the jaxpr comes from.
        outputs: the value that each output of the jaxpr is.
        consumed: carried values of its microbatch that no other task reads.
    """

    name: str
    jaxpr: Jaxpr
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    consumed: frozenset[Carried] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ActorTask:
    """A task in the list of an actor, run once a step: the `Run` that it becomes.

    Attributes:
        label: `0F3`, or the code's name for a task outside the loops.
        microbatch: the microbatch of a task inside a loop.
        finished: accumulators and carried values that are complete here, and the results that they become.
    """

    label: str
    code: TaskCode
    microbatch: int | None = None
    finished: tuple[tuple[Total | Carried, Var], ...] = ()


TaskRows = tuple[tuple[ActorTask, ...], ...]
"""The tasks of each actor, in order."""
