"""Waits that can be given up."""

import threading
import time

from jaxquard.runtime.transports.base import wait_until


def test_what_is_done_is_not_waited_for():
    assert wait_until(lambda: True, should_stop=lambda: True)


def test_it_ends_soon_after_it_is_done():
    done = threading.Event()
    start_s = time.perf_counter()
    threading.Timer(0.05, done.set).start()
    assert wait_until(done.is_set, should_stop=lambda: False)
    assert 0.04 < time.perf_counter() - start_s < 60


def test_it_ends_when_told_to():
    end_s = time.perf_counter() + 0.02
    assert not wait_until(lambda: False, should_stop=lambda: time.perf_counter() > end_s)
