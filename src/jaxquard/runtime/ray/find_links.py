"""The links of a program: what every actor sends to every other, in order."""

from jaxquard.ir.program import Program, Send
from jaxquard.ir.program.order import order_program
from jaxquard.runtime.slot_uses import find_slot_uses
from jaxquard.runtime.transports.protocol import Link


def find_links(program: Program) -> dict[tuple[int, int], Link]:
    """By (source, target). Both ends compute it, and get the same."""
    orders = {where: order for order, where in enumerate(order_program(program))}
    uses = [find_slot_uses(program, actor) for actor in program.actors]
    sends: dict[tuple[int, int], list[tuple[int, Send]]] = {}
    for source, actor in enumerate(program.actors):
        for position, instruction in enumerate(actor.instructions):
            if isinstance(instruction, Send):
                sends.setdefault((source, instruction.target), []).append((position, instruction))
    links = {}
    for (source, target), messages in sends.items():
        types, received = program.actors[target].types, uses[target].messages[source]
        links[source, target] = Link(
            source=source,
            target=target,
            messages=tuple(tuple(types[slot] for slot in slots) for slots in received),
            orders=tuple(orders[source, position] for position, _ in messages),
            may_donate=tuple(any(slot in uses[source].given_away for slot in send.slots) for _, send in messages),
        )
    return links
