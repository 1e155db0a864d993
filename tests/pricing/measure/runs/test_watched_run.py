import threading
import time

import pytest

from jaxquard.pricing.end_of_time import StalledError
from jaxquard.pricing.measure.runs.watched_run import WatchedRun


def test_results_and_errors_come_back():
    watch = WatchedRun()
    assert watch.run(lambda: 3, limit_s=60) == 3
    with pytest.raises(ZeroDivisionError):
        watch.run(lambda: 1 / 0, limit_s=60)
    assert watch.run(lambda: None, limit_s=60) is None
    watch.end(wait_s=60)


def test_what_stalls_is_left_behind():
    watch, release = WatchedRun(), threading.Event()
    start_s = time.monotonic()
    with pytest.raises(StalledError, match=r"no result within 0\.1 s"):
        watch.run(lambda: release.wait(200), limit_s=0.1)
    assert watch.run(lambda: 4, limit_s=120) == 4
    assert time.monotonic() - start_s < 120
    release.set()
    watch.end(wait_s=60)
