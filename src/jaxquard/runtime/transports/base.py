"""Waits for something that can only be asked, without holding the core or the caller for long.

Nothing in JAX tells that an array is ready, and a blocking wait could not be given up. A small message
takes about 0.1 ms, and a sleep at least 0.07, so the first looks only yield the core to whoever wants it: on two
busy cores a round trip of 1 KB then took 1.2 to 1.7 times that of the bare transport with a blocking wait, and
1.8 with sleeps alone. The sleeps after them grow, as a wait that has been long may well be longer.
"""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

SPIN_S = 200e-6
FIRST_SLEEP_S = 20e-6
LONGEST_SLEEP_S = 0.5e-3


def wait_until(is_done: Callable[[], bool], *, should_stop: Callable[[], bool]) -> bool:
    """Returns true when it is done, false when it should stop before."""
    if is_done():
        return True
    end_s = time.monotonic() + SPIN_S
    while time.monotonic() < end_s:
        os.sched_yield()
        if is_done():
            return True
    sleep_s = FIRST_SLEEP_S
    while not is_done():
        if should_stop():
            return False
        time.sleep(sleep_s)
        sleep_s = min(1.25 * sleep_s, LONGEST_SLEEP_S)
    return True


def are_ready(arrays: Sequence[Any]) -> bool:
    """Whether all of these arrays have arrived or failed; there are no random keys among them."""
    return all(array.is_ready() for array in arrays)
