"""The code of a task, names for the values that it takes and gives, and its turns on an actor."""

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
    """What a loop has accumulated so far."""

    loop: int
    target: int


Value = Outer | Local | Index | Total


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TaskCode:
    """One piece of code and the values it works on.

    Attributes:
        name: what to call it: `stage0_FB`, `after.1`.
        inputs: where each input of the jaxpr comes from.
        outputs: what each output of the jaxpr is.
    """

    name: str
    jaxpr: Jaxpr
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Job:
    """A task on an actor, once: what a `Run` will be.

    Attributes:
        task: `0F3`, or the code's name for what stands outside a loop.
        microbatch: which microbatch, inside a loop.
        finished: accumulators that get their last term here, and the results that they become.
    """

    task: str
    code: TaskCode
    microbatch: int | None = None
    finished: tuple[tuple[Total, Var], ...] = ()
