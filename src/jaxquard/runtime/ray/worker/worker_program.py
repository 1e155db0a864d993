"""A program in the process of one actor: its calls, compiled; its list, linked; its channels, open."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import Mesh

from jaxquard.ir.program import Program, Run, Send
from jaxquard.ir.program.order import order_program
from jaxquard.pricing.compile.partitioner_warnings import catch_warnings
from jaxquard.runtime.program.compile_calls import Executable, Site
from jaxquard.runtime.program.link_program import ActorList, link_actor
from jaxquard.runtime.program.slot_uses import find_slot_uses
from jaxquard.runtime.ray.export_calls import import_call
from jaxquard.runtime.ray.messages import ProgramOrder
from jaxquard.runtime.ray.worker.channels import Unacknowledged
from jaxquard.runtime.ray.worker.self_report import ActivityFile
from jaxquard.runtime.result_cell import StepLost
from jaxquard.runtime.transfer import as_value
from jaxquard.runtime.transports.layout import ChannelLayout
from jaxquard.runtime.transports.protocol import Channel, Receiver, Sender, Transport


def find_channels(program: Program) -> dict[tuple[int, int], Channel]:
    """Finds all messages that an actor sends to another, by (source, target). Both ends compute the same."""
    orders = {where: order for order, where in enumerate(order_program(program))}
    uses = [find_slot_uses(program, actor) for actor in program.actors]
    sends: dict[tuple[int, int], list[tuple[int, Send]]] = {}
    for source, actor in enumerate(program.actors):
        for position, instruction in enumerate(actor.instructions):
            if isinstance(instruction, Send):
                sends.setdefault((source, instruction.target), []).append((position, instruction))
    channels = {}
    for (source, target), messages in sends.items():
        types, received = program.actors[target].types, uses[target].messages[source]
        channels[source, target] = Channel(
            source=source,
            target=target,
            messages=tuple(tuple(types[slot] for slot in slots) for slots in received),
            orders=tuple(orders[source, position] for position, _ in messages),
            may_donate=tuple(any(slot in uses[source].given_away for slot in send.slots) for _, send in messages),
        )
    return channels


class WorkerProgram:
    """One actor's part of a program.

    Attributes:
        list: the instructions that it runs.
        senders: by target.
        receivers: by source.
    """

    list: ActorList

    def __init__(self, order: ProgramOrder, *, actor: int, site: Site) -> None:
        types = {constant.value: constant.slot for constant in order.program.actors[actor].constants}
        own = order.program.actors[actor]
        constants: list[Any] = [None] * (max(order.constants, default=-1) + 1)
        for number, data in order.constants.items():
            constants[number] = as_value(data, own.types[types[number]].dtype)
        self.number = order.number
        self.program = replace(order.program, constants=tuple(constants))
        self.actor, self.site = actor, site
        self.senders: dict[int, Sender] = {}
        self.receivers: dict[int, Receiver] = {}
        self._executables: dict[tuple[int, Site], Executable] = {}

    def compile(self, call: int, code: bytes) -> int:
        """Makes a call ready; calls may be compiled at the same time.

        Returns:
            The values that the partitioner gathers whole, of which it warns.
        """
        site, entry = self.site, self.program.calls[call]
        caught: list[int] = []
        # One device has no partitioner.
        catching = catch_warnings(caught.append) if site.mesh.size > 1 else contextlib.nullcontext()
        try:
            with catching:
                executable = import_call(code, entry, mesh=site.mesh, adds_witness=site.adds_witness(entry))
        except Exception as error:
            error.add_note(f"while compiling the task {entry.name} for a mesh {dict(site.mesh.shape)}")
            raise
        self._executables[call, site] = executable
        return sum(caught)

    def link(self, *, is_stopped: Callable[[], bool], activity: ActivityFile, unacknowledged: Unacknowledged) -> None:
        """Resolves the list, once all calls are compiled."""
        sent = self._find_sent()

        def wrap(run: Run, executable: Executable) -> Executable:
            donated = self.program.calls[run.call].donated
            guarded = frozenset(position for position in donated if run.inputs[position] in sent)

            def call(*args: jax.Array) -> list[jax.Array]:
                if is_stopped():
                    raise StepLost
                activity.write(run.task)
                if guarded:
                    args = tuple(
                        unacknowledged.to_donate(arg) if position in guarded else arg
                        for position, arg in enumerate(args)
                    )
                return executable(*args)

            return call

        self.list = link_actor(self.program, actor=self.actor, site=self.site, executables=self._executables, wrap=wrap)

    def open_channels(self, transport: Transport, mesh: Mesh) -> dict[tuple[int, int], ChannelLayout]:
        """Opens this process's ends; returns their layouts, to be compared with the other ends'."""
        self.senders, self.receivers = {}, {}
        for (source, target), channel in find_channels(self.program).items():
            if source == self.actor:
                self.senders[target] = transport.open_sender(channel, program_id=self.number, mesh=mesh)
            if target == self.actor:
                self.receivers[source] = transport.open_receiver(channel, program_id=self.number, mesh=mesh)
        ends = {(self.actor, target): sender.layout for target, sender in self.senders.items()}
        return ends | {(source, self.actor): receiver.layout for source, receiver in self.receivers.items()}

    def _find_sent(self) -> frozenset[int]:
        """Slots whose values may be on their way to a peer: sent in this step, or, given to it, in one before."""
        actor, taken = self.program.actors[self.actor], set(self.program.donated_args)
        sent = {slot for i in actor.instructions if isinstance(i, Send) for slot in i.slots}
        return frozenset(sent | {item.slot for item in actor.inputs if item.arg in taken})
