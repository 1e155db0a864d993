"""The speed of this machine: limits on a test's own processor time hold on slower machines too."""

import time

# On the machine where the limits were set, in seconds of processor time.
_NOMINAL_S = 0.11


def machine_pace() -> float:
    """Returns how many times slower this machine is now than the one where limits were set; 1 if it is as fast.

    Multiply a limit of processor time by it, right after that time was taken: what slows one slows the other.
    """
    return max(1.0, _reference_s() / _NOMINAL_S)


def _reference_s() -> float:
    """The processor time of what most of our Python does: small tuples, texts and dictionaries."""
    start_s = time.process_time()
    found = {}
    for number in range(300_000):
        found[number % 997, number % 13] = (number, str(number))
    return time.process_time() - start_s
