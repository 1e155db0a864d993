"""Finds the producer, the last use and the donation of each slot of an actor, to share arrays safely."""

from dataclasses import dataclass

from jaxquard.ir.program import ActorProgram, Program, Recv, Run, Send


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotUses:
    """The uses of the slots of one actor.

    Attributes:
        producers: for a slot that a task made, the name of the task.
        last_uses: for each slot, the last instruction that runs on it or sends it.
        outputs: slots that leave the step.
        given_away: slots that are donated, or leave the step to where they can be donated later.
        messages: for each actor it receives from, the slots of each message in order.
    """

    producers: dict[int, str]
    last_uses: dict[int, int]
    outputs: frozenset[int]
    given_away: frozenset[int]
    messages: dict[int, list[tuple[int, ...]]]


def find_slot_uses(program: Program, actor: ActorProgram) -> SlotUses:
    """Finds them in one pass over the actor's list."""
    producers: dict[int, str] = {}
    last_uses: dict[int, int] = {}
    messages: dict[int, list[tuple[int, ...]]] = {}
    outputs = frozenset(output.slot for output in actor.outputs)
    given_away = set(outputs)
    for position, instruction in enumerate(actor.instructions):
        match instruction:
            case Run(inputs=inputs, call=call):
                producers.update(dict.fromkeys(instruction.outputs, instruction.task))
                last_uses.update(dict.fromkeys(inputs, position))
                given_away.update(inputs[donated] for donated in program.calls[call].donated)
            case Send(slots=slots):
                last_uses.update(dict.fromkeys(slots, position))
            case Recv(slots=slots, source=source):
                messages.setdefault(source, []).append(slots)
    return SlotUses(
        producers=producers,
        last_uses=last_uses,
        outputs=outputs,
        given_away=frozenset(given_away),
        messages=messages,
    )


def may_share(sender: SlotUses, slot: int, position: int, receiver: SlotUses, received: int) -> bool:
    """Returns True if two actors on the same devices may hold one and the same array after a send.

    Only a value that a task of the sender made and that does not leave the step there: nobody can donate it
    while the receiver still uses it. If the receiver gives it away itself, the send must be its last use.
    """
    if slot not in sender.producers or slot in sender.outputs:
        return False
    return received not in receiver.given_away or sender.last_uses[slot] == position
