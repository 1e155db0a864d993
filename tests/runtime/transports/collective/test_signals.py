"""Notes between processes, here within one."""

import queue

import pytest

from jaxquard.runtime.transports.collective.signals import Kind, Note, Signals


@pytest.fixture
def pair():
    ends = []
    for actor in range(2):
        notes = queue.Queue()
        signals = Signals(
            actor,
            host="127.0.0.1",
            on_note=lambda peer, note, notes=notes: notes.put((peer, note)),
            on_lost=lambda peer, notes=notes: notes.put((peer, "lost")),
        )
        ends.append((signals, notes))
    for own, other in ((0, 1), (1, 0)):
        ends[own][0].connect(other, ends[other][0].address)
    yield ends
    for signals, _ in ends:
        signals.close()


def test_notes_arrive_in_order(pair):
    (first, from_second), (second, from_first) = pair
    notes = [Note(Kind.OFFER, step, 2**40, -step) for step in range(500)]
    for note in notes:
        first.send(1, note)
    second.send(0, Note(Kind.GRANT, 1, 2, 3))
    assert [from_first.get(timeout=60) for _ in notes] == [(0, note) for note in notes]
    assert from_second.get(timeout=60) == (1, Note(Kind.GRANT, 1, 2, 3))


def test_a_peer_that_ends_is_noticed(pair):
    (first, _), (_, from_first) = pair
    first.close()
    assert from_first.get(timeout=60) == (0, "lost")
