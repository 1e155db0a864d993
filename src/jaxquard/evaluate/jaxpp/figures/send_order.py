"""Figure 6: the order in which sends and receives are issued, and the deadlocks of the naive one (section 4.2).

In the naive order every task receives what it needs, runs, and sends what it made. In JaxPP's, tasks are taken in an
order that their data allows, and a send and its receive are issued as soon as the task that makes the value is. A pair
of actors takes its sends and receives one after the other, as a NCCL communicator does: both must have them in the same
order, or they wait for each other.
"""

from collections import defaultdict, deque
from dataclasses import dataclass

from jaxquard.schedules import GPipe, Interleaved, OneFOneB, Rows, ZeroBubbleH1, run_order
from jaxquard.schedules.dependences import count_stages, made_by, needs_of

# Of an actor: ("run", task), ("send", value, target) or ("receive", value, source).
Operations = list[list[tuple]]
_SCHEDULES = (
    (GPipe(4), 8),
    (OneFOneB(4), 8),
    (OneFOneB(8), 32),
    (ZeroBubbleH1(4), 8),
    (Interleaved(8, 4), 8),
    (Interleaved(48, 8), 32),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOrder:
    """A schedule with both orders.

    Attributes:
        naive_done: the share of all operations that the naive order gets done before it locks; 1 if it does not.
        paired_done: the same of JaxPP's order.
    """

    schedule: str
    num_microbatches: int
    naive_done: float
    paired_done: float


def compare_send_orders() -> tuple[SendOrder, ...]:
    """Plays both orders of some schedules."""
    return tuple(
        SendOrder(
            schedule=repr(schedule),
            num_microbatches=count,
            naive_done=done_share(naive_operations(schedule.rows(count))),
            paired_done=done_share(paired_operations(schedule.rows(count))),
        )
        for schedule, count in _SCHEDULES
    )


def naive_operations(rows: Rows) -> Operations:
    """Returns receives, run and sends of each task in turn, actor by actor."""
    home, users = _homes(rows)
    operations: Operations = []
    num_stages = count_stages(rows)
    for actor, row in enumerate(rows):
        found: list[tuple] = []
        for task in row:
            for value in needs_of(task, num_stages=num_stages):
                if home[value] != actor:
                    found.append(("receive", value, home[value]))
            found.append(("run", task))
            value = made_by(task)
            found += [("send", value, user) for user in users[value] if user != actor]
        operations.append(found)
    return operations


def paired_operations(rows: Rows) -> Operations:
    """Returns operations in JaxPP's order: a send and its receive are issued with the task that makes the value."""
    _, users = _homes(rows)
    operations: Operations = [[] for _ in rows]
    for actor, task in run_order(rows):
        operations[actor].append(("run", task))
        value = made_by(task)
        for user in users[value]:
            if user != actor:
                operations[actor].append(("send", value, user))
                operations[user].append(("receive", value, actor))
    return operations


def _homes(rows: Rows) -> tuple[dict, dict]:
    """Returns the actor that makes each value, and the actors that use it."""
    home, users, num_stages = {}, defaultdict(list), count_stages(rows)
    for actor, row in enumerate(rows):
        for task in row:
            home[made_by(task)] = actor
            for value in needs_of(task, num_stages=num_stages):
                if actor not in users[value]:
                    users[value].append(actor)
    return home, users


def done_share(operations: Operations) -> float:
    """Plays operations and returns the share that gets done.

    Runs wait for what they receive; sends and receives are issued without waiting. Those of a pair of actors happen in
    the order in which each of the two issued them, when the first of one matches the first of the other.
    """
    num_stages = 1 + max(entry[1].stage for row in operations for entry in row if entry[0] == "run")
    places = [0] * len(operations)
    issued: dict[tuple[int, int], deque[tuple]] = defaultdict(deque)
    present: list[set] = [set() for _ in operations]
    done, moved = 0, True
    while moved:
        moved = False
        for actor, row in enumerate(operations):
            while places[actor] < len(row):
                entry = row[places[actor]]
                if entry[0] != "run":
                    issued[actor, entry[2]].append(entry)
                elif all(value in present[actor] for value in needs_of(entry[1], num_stages=num_stages)):
                    present[actor].add(made_by(entry[1]))
                    done += 1
                else:
                    break
                places[actor] += 1
                moved = True
        for actor, peer in [pair for pair in issued if pair[0] < pair[1]]:
            own, other = issued[actor, peer], issued[peer, actor]
            while own and other and own[0][1] == other[0][1] and {own[0][0], other[0][0]} == {"send", "receive"}:
                kind, value, _ = own.popleft()
                other.popleft()
                present[peer if kind == "send" else actor].add(value)
                done, moved = done + 2, True
    return done / sum(map(len, operations))
