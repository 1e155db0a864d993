"""Plays a program without values: an order in which its instructions can happen, or its deadlock.

Sends and receives never block. An instruction that uses a received slot (`Run`, `Send`, `Free`) waits until
the message with that slot was sent; so does the end of an actor's list for received slots that are outputs.
Every actor is played as far as it gets, then the next: time is linear in the number of instructions.
"""

from collections import deque
from dataclasses import dataclass

from jaxquard.errors import ProgramError
from jaxquard.ir.program.instructions import ActorProgram, Recv, Run, Send
from jaxquard.ir.program.program import Program
from jaxquard.ir.program.write import write_instruction


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """An instruction that cannot start before message number `message` of `source` was sent."""

    instruction: int
    source: int
    message: int
    slot: int


def find_waits(actor: ActorProgram) -> tuple[Wait, ...]:
    """For each received slot, the first instruction that uses it, in order of the instructions.

    The end of the list, where outputs are read, counts as one more instruction.
    """
    pending: dict[int, tuple[int, int]] = {}
    received: dict[int, int] = {}
    waits: list[Wait] = []

    def use(position: int, slots: tuple[int, ...]) -> None:
        for slot in slots:
            if slot in pending:
                source, message = pending.pop(slot)
                waits.append(Wait(instruction=position, source=source, message=message, slot=slot))

    for position, instruction in enumerate(actor.instructions):
        if isinstance(instruction, Recv):
            message = received.get(instruction.source, 0)
            received[instruction.source] = message + 1
            pending.update((slot, (instruction.source, message)) for slot in instruction.slots)
        elif pending:
            use(position, instruction.inputs if isinstance(instruction, Run) else instruction.slots)
    use(len(actor.instructions), tuple(output.slot for output in actor.outputs))
    return tuple(waits)


def order_program(program: Program) -> tuple[tuple[int, int], ...]:
    """All instructions as (actor, instruction) in an order in which they can happen.

    Raises:
        ProgramError: if actors wait for each other; names the cycle.
    """
    players = [_Player(actor, actor_program) for actor, actor_program in enumerate(program.actors)]
    sent: dict[tuple[int, int], int] = {}
    order: list[tuple[int, int]] = []
    ready = deque(players)
    while ready:
        for target in ready.popleft().play(sent, order):
            if target < len(players) and players[target].is_released(sent):
                players[target].blocked = None
                ready.append(players[target])
    if any(player.blocked is not None for player in players):
        raise ProgramError(_describe_deadlock(program, players))
    return tuple(order)


class _Player:
    """One actor, played up to `position`."""

    __slots__ = ("actor", "blocked", "instructions", "next_wait", "position", "waits")

    def __init__(self, actor: int, program: ActorProgram) -> None:
        self.actor = actor
        self.instructions = program.instructions
        self.waits = find_waits(program)
        self.next_wait = 0
        self.position = 0
        self.blocked: Wait | None = None

    def is_released(self, sent: dict[tuple[int, int], int]) -> bool:
        wait = self.blocked
        return wait is not None and sent.get((wait.source, self.actor), 0) > wait.message

    def play(self, sent: dict[tuple[int, int], int], order: list[tuple[int, int]]) -> set[int]:
        """Goes on until a wait is not met or the list ends; returns the actors that were sent to."""
        targets: set[int] = set()
        end = len(self.instructions)
        while True:
            stop = self._stop(sent)
            for position in range(self.position, min(stop, end)):
                order.append((self.actor, position))
                instruction = self.instructions[position]
                if type(instruction) is Send:
                    channel = (self.actor, instruction.target)
                    sent[channel] = sent.get(channel, 0) + 1
                    targets.add(instruction.target)
            self.position = min(stop, end)
            self.blocked = self.waits[self.next_wait] if self.next_wait < len(self.waits) else None
            if self.blocked is None or not self.is_released(sent):
                return targets

    def _stop(self, sent: dict[tuple[int, int], int]) -> int:
        """The first instruction whose wait is not met now; one past the end if there is none."""
        while self.next_wait < len(self.waits):
            wait = self.waits[self.next_wait]
            if sent.get((wait.source, self.actor), 0) <= wait.message:
                return wait.instruction
            self.next_wait += 1
        return len(self.instructions) + 1


def _describe_deadlock(program: Program, players: list[_Player]) -> str:
    current = next(player for player in players if player.blocked is not None)
    seen: list[_Player] = []
    while current not in seen and current.blocked is not None:
        seen.append(current)
        current = players[current.blocked.source]
    cycle = seen[seen.index(current) :] if current in seen else seen
    steps = "; ".join(_describe_wait(program, player) for player in cycle)
    return f"deadlock: {steps}. Move a send before the instruction that waits."


def _describe_wait(program: Program, player: _Player) -> str:
    wait = player.blocked
    assert wait is not None
    if wait.instruction < len(player.instructions):
        text = write_instruction(player.instructions[wait.instruction], program.calls)
        where = f"instruction {wait.instruction} ({' '.join(text.split())})"
    else:
        where = "its end"
    return f"actor {player.actor} waits at {where} for s{wait.slot} from actor {wait.source}"
