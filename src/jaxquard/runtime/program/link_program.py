"""Makes a program ready to run: resolves, in each actor's list, all that is the same in every step.

    run     s5 = 0F0 stage0_forward#0(s0, s1)    RUN (call, executable, gather, outputs, dead, adds_witness)
    send    s5 -> actor 1                        SEND (channel, ((5, move),))
    recv    s9 <- actor 1                        nothing
    run     s7 = 0B0 stage0_backward#2(s9)       ARRIVE (channel, (9,)), then the RUN

A receive does not wait, its first use does. Where that is, is known beforehand (`find_waits`), so a link puts
an ARRIVE there for that message and, as a channel gives its messages in order, for those before it.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import NamedSharding

from jaxquard.errors import MeshError
from jaxquard.ir.array_type import ArrayType
from jaxquard.ir.program import Free, Program, Recv, Run, Send
from jaxquard.ir.program.check import check_program
from jaxquard.ir.program.order import find_waits, order_program
from jaxquard.runtime.program.compile_calls import Executable, Site
from jaxquard.runtime.program.slot_uses import find_slot_uses, may_share
from jaxquard.runtime.transfer import TransferFn, choose_transfer, place, sharding_on

RUN, SEND, ARRIVE, FREE = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedInput:
    """A slot to fill before the first instruction."""

    slot: int
    sharding: NamedSharding
    is_donated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedOutput:
    """A slot to return after the last instruction; a borrowed one, which stays in use, as a copy."""

    slot: int
    is_borrowed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorList:
    """The resolved instruction list of one actor.

    Attributes:
        instructions: tuples (kind, order, name, position, work), where the work depends on the kind.
        sources: the actors it receives from; an ARRIVE counts in it.
        targets: the actors it sends to; a SEND counts in it.
        outputs: each slot once.
    """

    actor: int
    num_slots: int
    instructions: tuple[tuple[Any, ...], ...]
    inputs: tuple[LinkedInput, ...]
    constants: tuple[tuple[int, jax.Array], ...]
    outputs: tuple[LinkedOutput, ...]
    sources: tuple[int, ...]
    targets: tuple[int, ...]


def check_for_actors(program: Program, *, num_actors: int) -> None:
    """Checks a program before it is loaded.

    Raises:
        MeshError: if it is for another number of actors.
        ProgramError: if it breaks a rule of the instruction list.
    """
    if len(program.actors) != num_actors:
        raise MeshError(f"the program is for {len(program.actors)} actors, but the mesh has {num_actors}.")
    check_program(program)


def link_program(
    program: Program, sites: tuple[Site, ...], executables: Mapping[tuple[int, Site], Executable]
) -> tuple[ActorList, ...]:
    """Resolves the list of each actor."""
    shared = _Shared(program, dict(enumerate(sites)), executables)
    return tuple(_ActorLinker(shared, actor).link() for actor in range(len(program.actors)))


def link_actor(
    program: Program,
    *,
    actor: int,
    site: Site,
    executables: Mapping[tuple[int, Site], Executable],
    wrap: "Callable[[Run, Executable], Executable]",
) -> ActorList:
    """Resolves the list of the one actor that this process has; the others are elsewhere.

    Arrays to send get the layout that the receiver wants, on a mesh of the same shape, but stay on this actor's
    devices: a transport takes them from there.

    Args:
        wrap: gets every task and its executable, and returns what to call.
    """
    return _ActorLinker(_Shared(program, {actor: site}, executables, wrap), actor).link()


def gatherer(slots: tuple[int, ...]) -> Callable[[list[Any]], Any]:
    """Returns a function that takes these places out of a list, as something to unpack."""
    if len(slots) == 1:
        return operator.itemgetter(slice(slots[0], slots[0] + 1))
    return operator.itemgetter(*slots) if slots else operator.itemgetter(slice(0, 0))


def _as_range(slots: tuple[int, ...]) -> slice | tuple[int, ...]:
    """Turns consecutive slots into a slice, so that one assignment fills them all."""
    if slots and slots == tuple(range(slots[0], slots[0] + len(slots))):
        return slice(slots[0], slots[0] + len(slots))
    return slots


class _Shared:
    """The shardings, transfers and constants that the links of all actors share, each made once."""

    def __init__(
        self,
        program: Program,
        sites: Mapping[int, Site],
        executables: Mapping[tuple[int, Site], Executable],
        wrap: Callable[[Run, Executable], Executable] | None = None,
    ) -> None:
        self.program = program
        self.sites = sites
        self.wrap = wrap
        self.executables = executables
        self.orders = {where: order for order, where in enumerate(order_program(program))}
        self.uses = [find_slot_uses(program, actor) for actor in program.actors]
        self._shardings: dict[tuple[Site, ArrayType], NamedSharding] = {}
        self._moves: dict[tuple[Any, ...], TransferFn] = {}
        self._constants: dict[tuple[int, NamedSharding], jax.Array] = {}

    def sharding(self, actor: int, type_: ArrayType) -> NamedSharding:
        key = (self.sites[actor], type_)
        if key not in self._shardings:
            self._shardings[key] = sharding_on(self.sites[actor].mesh, type_)
        return self._shardings[key]

    def move(self, type_: ArrayType, source: NamedSharding, target: NamedSharding, *, sharing: bool) -> TransferFn:
        key = (type_, source, target, sharing)
        if key not in self._moves:
            self._moves[key] = choose_transfer(source, target, type_, may_share=sharing)
        return self._moves[key]

    def constant(self, value: int, sharding: NamedSharding) -> jax.Array:
        key = (value, sharding)
        if key not in self._constants:
            self._constants[key] = place(self.program.constants[value], sharding)
        return self._constants[key]


class _ActorLinker:
    """Links the list of one actor."""

    def __init__(self, shared: _Shared, actor: int) -> None:
        self.shared = shared
        self.actor = actor
        self.list = shared.program.actors[actor]
        self.site = shared.sites[actor]
        self.uses = shared.uses[actor]
        self.sources = tuple(sorted(self.uses.messages))
        self.targets = tuple(sorted({i.target for i in self.list.instructions if isinstance(i, Send)}))
        self.num_arrived = dict.fromkeys(self.sources, 0)
        self.num_sent = dict.fromkeys(self.targets, 0)

    def link(self) -> ActorList:
        donated_args = frozenset(self.shared.program.donated_args)
        return ActorList(
            actor=self.actor,
            num_slots=len(self.list.types),
            instructions=tuple(self._instructions()),
            inputs=tuple(
                LinkedInput(slot=i.slot, sharding=self._sharding(i.slot), is_donated=i.arg in donated_args)
                for i in self.list.inputs
            ),
            constants=tuple(
                (i.slot, self.shared.constant(i.value, self._sharding(i.slot))) for i in self.list.constants
            ),
            outputs=self._outputs(donated_args),
            sources=self.sources,
            targets=self.targets,
        )

    def _instructions(self) -> list[tuple[Any, ...]]:
        waits: dict[int, list[tuple[int, int]]] = {}
        for wait in find_waits(self.list):
            waits.setdefault(wait.instruction, []).append((wait.source, wait.message))
        linked: list[tuple[Any, ...]] = []
        for position, instruction in enumerate(self.list.instructions):
            for source, message in waits.get(position, ()):
                linked += self._arrivals(source, message, position)
            linked += _LINKERS[type(instruction)](self, position, instruction)
        for source, message in waits.get(len(self.list.instructions), ()):
            linked += self._arrivals(source, message, len(self.list.instructions))
        return linked

    def _arrivals(self, source: int, message: int, position: int) -> list[tuple[Any, ...]]:
        """Waits for all messages of a source up to this one that have not arrived before."""
        first, self.num_arrived[source] = self.num_arrived[source], max(message + 1, self.num_arrived[source])
        order = self.shared.orders.get((self.actor, position), len(self.shared.orders))
        return [
            (
                ARRIVE,
                order,
                f"message {number} from {source}",
                position,
                (self.sources.index(source), self.uses.messages[source][number]),
            )
            for number in range(first, message + 1)
        ]

    def _run(self, position: int, run: Run) -> list[tuple[Any, ...]]:
        call = self.shared.program.calls[run.call]
        return [
            (
                RUN,
                self.shared.orders[self.actor, position],
                run.task,
                position,
                (
                    run.call,
                    self._executable(run),
                    gatherer(run.inputs),
                    _as_range(run.outputs),
                    tuple(run.inputs[donated] for donated in call.donated),
                    self.site.adds_witness(call),
                ),
            )
        ]

    def _executable(self, run: Run) -> Executable:
        executable = self.shared.executables[run.call, self.site]
        return executable if self.shared.wrap is None else self.shared.wrap(run, executable)

    def _send(self, position: int, send: Send) -> list[tuple[Any, ...]]:
        number = self.num_sent[send.target]
        self.num_sent[send.target] += 1
        received = self.shared.uses[send.target].messages[self.actor][number]
        moves = tuple(
            (slot, self._move(position, slot, send.target, theirs))
            for slot, theirs in zip(send.slots, received, strict=True)
        )
        what = dict.fromkeys(self.uses.producers.get(slot, f"s{slot}") for slot in send.slots)
        name = f"{', '.join(what)} to {send.target}"
        order = self.shared.orders[self.actor, position]
        return [(SEND, order, name, position, (self.targets.index(send.target), moves))]

    def _receive(self, position: int, receive: Recv) -> list[tuple[Any, ...]]:
        return []

    def _free(self, position: int, free: Free) -> list[tuple[Any, ...]]:
        return [(FREE, self.shared.orders[self.actor, position], "free", position, free.slots)]

    def _move(self, position: int, slot: int, target: int, theirs: int) -> TransferFn:
        is_here = target in self.shared.sites
        return self.shared.move(
            self.list.types[slot],
            self._sharding(slot),
            self.shared.sharding(target if is_here else self.actor, self.shared.program.actors[target].types[theirs]),
            sharing=not is_here or may_share(self.uses, slot, position, self.shared.uses[target], theirs),
        )

    def _outputs(self, donated_args: frozenset[int]) -> tuple[LinkedOutput, ...]:
        borrowed = {constant.slot for constant in self.list.constants}
        borrowed |= {item.slot for item in self.list.inputs if item.arg not in donated_args}
        slots = dict.fromkeys(output.slot for output in self.list.outputs)
        return tuple(LinkedOutput(slot=slot, is_borrowed=slot in borrowed) for slot in slots)

    def _sharding(self, slot: int) -> NamedSharding:
        return self.shared.sharding(self.actor, self.list.types[slot])


_LINKERS: dict[type, Callable[..., list[tuple[Any, ...]]]] = {
    Run: _ActorLinker._run,
    Send: _ActorLinker._send,
    Recv: _ActorLinker._receive,
    Free: _ActorLinker._free,
}
