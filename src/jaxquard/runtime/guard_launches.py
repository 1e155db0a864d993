"""Keeps threads that share several devices from launching onto them in different orders.

Two actors on the same devices launch from two threads. If one device gets A then B and another B then A, a
collective in A waits on the first device for the second, which waits in B for the first: a deadlock. So
launches of multi-device calls on shared devices take turns. On CPU a call must also have ended before the next
one starts: a client seems to have about as many threads as devices, and see `in_flight` for what follows.
"""

import threading
from typing import Any

import jax

from jaxquard.runtime.compile_calls import Executable


def guard_launches(executable: Executable, lock: threading.Lock) -> Executable:
    """The executable, launched under a lock, on CPU until it has ended."""

    def launch(*args: Any) -> list[jax.Array]:
        with lock:
            outputs = executable(*args)
            if outputs and next(iter(outputs[-1].devices())).platform == "cpu":
                outputs[-1].block_until_ready()
        return outputs

    return launch
