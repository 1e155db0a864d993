"""A step as one flat list of instructions per actor (design decision 2).

Slots are numbered per actor; each is defined once: by an input, a constant, a `Run` or a
`Recv`. Values cross between actors only by a `Send` and the `Recv` that matches it: the k-th
send from actor a to actor b is taken by the k-th receive on b from a, slot for slot.

Reductions over microbatches are part of the tasks themselves (an accumulator goes in, donated,
and comes out), so there is no instruction for them: a call fewer per task.
"""

from dataclasses import dataclass, field
from typing import Any

from jaxquard.ir.array_type import ArrayType


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Code that an actor compiles once and runs many times.

    Attributes:
        donated: positions of the arguments whose buffers the call may reuse.
        code: the closed jaxpr; absent in a program read from text, and no part of equality.
        runs_once: True for code that runs only once, so that a quick compilation counts for more than fast code;
            no part of the text and of equality.
    """

    name: str
    inputs: tuple[ArrayType, ...]
    outputs: tuple[ArrayType, ...]
    donated: tuple[int, ...] = ()
    code: Any = field(default=None, compare=False, repr=False)
    runs_once: bool = field(default=False, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """Part `part` of the step's flat argument `arg` arrives in `slot` before the first instruction."""

    slot: int
    arg: int
    part: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """`slot` holds value number `value` of the program's constants in every step."""

    slot: int
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """`slot` holds, after the last instruction, part `part` of the step's flat result `result`."""

    slot: int
    result: int
    part: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Runs call number `call`; donated inputs are dead afterwards.

    Attributes:
        task: its name in a timeline or an error: `0F3`, or a name such as `update.1`.
    """

    task: str
    call: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Starts sending the values of `slots` to an actor; the slots stay alive here."""

    slots: tuple[int, ...]
    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Recv:
    """Asks for the next values from an actor; a later use waits for them, this does not."""

    slots: tuple[int, ...]
    source: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """Drops slots; one that is still being sent goes when its send is done."""

    slots: tuple[int, ...]


Instruction = Run | Send | Recv | Free


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorProgram:
    """The instructions of one actor in a step. `types[slot]` is the type of a slot."""

    types: tuple[ArrayType, ...]
    inputs: tuple[Input, ...] = ()
    constants: tuple[Constant, ...] = ()
    instructions: tuple[Instruction, ...] = ()
    outputs: tuple[Output, ...] = ()
