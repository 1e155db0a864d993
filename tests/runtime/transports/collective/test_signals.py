"""Signals between processes, here within one."""

import queue

import pytest

from jaxquard.runtime.transports.collective.signals import Signal, SignalKind, Signals
from jaxquard.runtime.transports.peers.secret import new_mesh_secret


@pytest.fixture(params=[None, "127.0.0.1"])
def pair(request, tmp_path):
    ends, secret = [], new_mesh_secret()
    for actor in range(2):
        inbox = queue.Queue()
        signals = Signals(
            actor,
            secret=secret,
            host=request.param,
            folder=str(tmp_path),
            on_signal=lambda peer, signal, inbox=inbox: inbox.put((peer, signal)),
            on_lost=lambda peer, inbox=inbox: inbox.put((peer, "lost")),
        )
        ends.append((signals, inbox))
    for own, other in ((0, 1), (1, 0)):
        ends[own][0].connect({other: ends[other][0].address})
    yield ends
    for signals, _ in ends:
        signals.close()


def test_signals_arrive_in_order(pair):
    (first, from_second), (second, from_first) = pair
    signals = [Signal(SignalKind.OFFER, step, 2**40, -step) for step in range(500)]
    for signal in signals:
        first.send(1, signal)
    second.send(0, Signal(SignalKind.GRANT, 1, 2, 3))
    assert [from_first.get(timeout=60) for _ in signals] == [(0, signal) for signal in signals]
    assert from_second.get(timeout=60) == (1, Signal(SignalKind.GRANT, 1, 2, 3))


def test_a_peer_that_ends_is_noticed(pair):
    (first, _), (_, from_first) = pair
    first.close()
    assert from_first.get(timeout=60) == (0, "lost")
