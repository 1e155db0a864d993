"""Messages between two processes, whole or not at all."""

import contextlib
import signal
import threading

import numpy as np
import pytest

from jaxquard.runtime.ray.client.message_pipe import MessagePipe, make_pipe


@pytest.fixture
def ends():
    with contextlib.ExitStack() as stack:
        yield tuple(MessagePipe(stack.enter_context(end)) for end in make_pipe())


@pytest.mark.parametrize("size", [0, 1, 16_000, 17_000, 300_000, 5_000_000])
def test_messages_of_any_size(ends, size):
    here, there = ends
    message = (size, "call", b"x" * size)
    here.send(message)
    assert there.receive() == (message, [])


@pytest.mark.parametrize("body", [b"", b"x" * 50_000], ids=["small", "large"])
def test_buffers_come_with_a_message(ends, body):
    here, there = ends
    arrays = [np.arange(3_000_000, dtype=np.float32), np.zeros(0), np.arange(5)]
    here.send(("share", body), arrays)
    message, buffers = there.receive()
    assert message == ("share", body)
    for array, buffer in zip(arrays, buffers, strict=True):
        found = np.frombuffer(buffer, array.dtype)
        assert found.ctypes.data % 64 == 0 or not found.size
        np.testing.assert_array_equal(found, array)
        if found.size:
            found[0] = 7  # It is the receiver's own.


def test_threads_send_at_the_same_time(ends):
    here, there = ends

    def send(sender):
        for number in range(200):
            here.send((sender, number), [bytes([sender]) * 100_000] if number % 20 == 0 else ())

    threads = [threading.Thread(target=send, args=(sender,)) for sender in range(4)]
    for thread in threads:
        thread.start()
    found = [there.receive() for _ in range(800)]
    for thread in threads:
        thread.join()
    for sender in range(4):
        mine = [(number, buffers) for (source, number), buffers in found if source == sender]
        assert [number for number, _ in mine] == list(range(200))
        assert all(bytes(buffers[0]) == bytes([sender]) * 100_000 for number, buffers in mine if number % 20 == 0)


def test_the_end_of_the_pipe(ends):
    here, there = ends
    here.send("last")
    here.shut_down()
    assert there.receive()[0] == "last"
    with pytest.raises(EOFError):
        there.receive()
    with pytest.raises(OSError):  # noqa: PT011
        there.send("too late")


def test_a_send_that_is_interrupted_leaves_nothing_half_sent(ends):
    """Nobody reads, so that a send must wait, and Ctrl-C comes."""
    here, there = ends
    num_sent = 0

    def send_without_end():
        nonlocal num_sent
        while True:
            here.send((num_sent, b"x" * 10_000))
            num_sent += 1

    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            send_without_end()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    numbers = [there.receive()[0][0] for _ in range(num_sent)]
    assert numbers == list(range(num_sent))
    here.send("whole")
    found = there.receive()[0]
    assert found == "whole" or (found[0] == num_sent and there.receive()[0] == "whole")
