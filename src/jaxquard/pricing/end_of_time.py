"""The end of the time for a batch of programs, a moment of `time.monotonic`: what is late fails."""

import time


class OutOfTimeError(RuntimeError):
    """The time for a program was over before it was compiled or had run, or while it did."""

    def __init__(self) -> None:
        super().__init__("the time was over")


class StalledError(RuntimeError):
    """Something did not end within its own limit; it may still be under way."""


def check_time(end_s: float) -> None:
    """Raises OutOfTimeError if a moment of `time.monotonic` has passed."""
    if time.monotonic() >= end_s:
        raise OutOfTimeError
