"""The player of pipelines: steps in the order of their actors, and messages between them, in one pass.

An actor runs its steps in order. A step may wait for one message and send one when it ends. What each step does follows
from those before it, so that no events have to be sorted: an actor is played until it waits for a message that is not
sent yet, and is taken up again when it is. Time is linear in the number of steps.

    asynchronous   a message goes when it is made and its link is free; links carry one message at a time, in the order
                   in which they were made, and actors compute meanwhile
    synchronous    an actor computes nothing while it sends or receives; what it sends and what it receives go at the
                   same time, and a sender does not wait until the receiver is there; a step of no time only sends or
                   receives, and holds nothing up
"""

from collections.abc import Sequence
from dataclasses import dataclass

NO_MESSAGE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorSteps:
    """The steps of one actor: the seconds of each, the message that it waits for, and the one that it sends."""

    times_s: list[float]
    waits: list[int]
    sends: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Messages:
    """All messages: the link of each, and its seconds there."""

    links: list[int]
    times_s: list[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedSteps:
    """The times of steps and messages.

    Attributes:
        starts_s: for each actor, when each step starts to compute; shorter than its steps if it never ends.
        sent_s: for each message, when its sender begins to send it; -1 if it was never sent.
        received_s: when its receiver begins to receive it.
        arrived_s: when all of it is there; of synchronous messages only those that were received.
        waiting: actors that wait for a message that never comes, with that message.
    """

    starts_s: list[list[float]]
    sent_s: list[float]
    received_s: list[float]
    arrived_s: list[float]
    waiting: dict[int, int]


def play_steps(actors: Sequence[ActorSteps], messages: Messages, *, is_synchronous: bool = False) -> PlayedSteps:
    """Plays all steps as far as they get."""
    num_messages = len(messages.times_s)
    played = PlayedSteps(
        starts_s=[[] for _ in actors],
        sent_s=[-1.0] * num_messages,
        received_s=[-1.0] * num_messages,
        arrived_s=[-1.0] * num_messages,
        waiting={},
    )
    if is_synchronous:
        _play_synchronous(actors, messages, played)
    else:
        _play_asynchronous(actors, messages, played)
    return played


def _play_asynchronous(actors: Sequence[ActorSteps], messages: Messages, played: PlayedSteps) -> None:
    links, message_times_s = messages.links, messages.times_s
    sent_s, arrived_s, waiting = played.sent_s, played.arrived_s, played.waiting
    link_free_s = [0.0] * (1 + max(links, default=0))
    waiters = [NO_MESSAGE] * len(links)
    free_s = [0.0] * len(actors)
    ready = list(reversed(range(len(actors))))
    while ready:
        actor = ready.pop()
        waiting.pop(actor, None)
        steps, starts_s, now_s = actors[actor], played.starts_s[actor], free_s[actor]
        times_s, waits, sends = steps.times_s, steps.waits, steps.sends
        for position in range(len(starts_s), len(times_s)):
            message = waits[position]
            if message >= 0:
                arrival_s = arrived_s[message]
                if arrival_s < 0:
                    waiters[message], waiting[actor] = actor, message
                    break
                if arrival_s > now_s:
                    now_s = arrival_s
            starts_s.append(now_s)
            now_s += times_s[position]
            message = sends[position]
            if message >= 0:
                link = links[message]
                departure_s = link_free_s[link]
                if now_s > departure_s:
                    departure_s = now_s
                sent_s[message] = departure_s
                link_free_s[link] = arrived_s[message] = departure_s + message_times_s[message]
                if waiters[message] >= 0:
                    ready.append(waiters[message])
        free_s[actor] = now_s
    played.received_s[:] = sent_s


def _play_synchronous(actors: Sequence[ActorSteps], messages: Messages, played: PlayedSteps) -> None:
    times_s, sent_s, arrived_s, waiting = messages.times_s, played.sent_s, played.arrived_s, played.waiting
    waiters = [NO_MESSAGE] * len(times_s)
    # When each actor has sent, and has received, all that it has so far.
    out_s, in_s = [0.0] * len(actors), [0.0] * len(actors)
    ready = list(reversed(range(len(actors))))
    while ready:
        actor = ready.pop()
        waiting.pop(actor, None)
        steps, starts_s = actors[actor], played.starts_s[actor]
        for position in range(len(starts_s), len(steps.times_s)):
            message = steps.waits[position]
            if message >= 0:
                if sent_s[message] < 0:
                    waiters[message], waiting[actor] = actor, message
                    break
                played.received_s[message] = max(in_s[actor], sent_s[message])
                in_s[actor] = arrived_s[message] = played.received_s[message] + times_s[message]
            starts_s.append(max(in_s[actor], out_s[actor]))
            end_s = starts_s[-1] + steps.times_s[position]
            if steps.times_s[position]:
                in_s[actor] = end_s
            out_s[actor] = end_s
            message = steps.sends[position]
            if message >= 0:
                sent_s[message] = end_s
                out_s[actor] = end_s + times_s[message]
                if waiters[message] >= 0:
                    ready.append(waiters[message])
