"""Output on its way to the terminal and into the log: a reader that stands still holds nothing up."""

import os
import signal
import sys

import pytest

from jaxquard.runtime.supervisor import run_log
from jaxquard.runtime.supervisor.run_log import OutputStream, RunLog
from tests.runtime.supervisor.supervised import Supervised, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the supervisor needs Linux")

FLOODS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
for number in range(20_000):
    print("step", number, "." * 50)
    print("warning", number, "." * 50, file=sys.stderr)
open("printed", "w").close()
time.sleep(100)
"""


def test_a_reader_that_stands_still_misses_what_the_log_has(monkeypatch, tmp_path):
    monkeypatch.setattr(run_log, "_PATIENCE_S", 0.05)
    (source, sink), (reading, terminal) = os.pipe(), os.pipe()
    log = RunLog(tmp_path / "log.txt")
    stream = OutputStream(source, terminal=terminal, log=log)
    lines = [b"%06d %s\n" % (number, b"." * 2000) for number in range(100)]
    try:
        for line in lines:
            os.write(sink, line)
            assert stream.forward()
        shown = os.read(reading, 1 << 20)
        os.write(sink, b"later\n")
        assert stream.forward()
        rest = os.read(reading, 1 << 20)
    finally:
        stream.close()
        log.close()
        for descriptor in (sink, reading, terminal):
            os.close(descriptor)
    content = b"".join(lines)
    assert content.startswith(shown)
    assert rest == b"\n[jaxquard] %d bytes are in the log alone\nlater\n" % (len(content) - len(shown))
    assert (tmp_path / "log.txt").read_bytes() == content + b"later\n"


@pytest.mark.slow  # Waits until the reader has had its time; without a program: above.
def test_a_signal_is_forwarded_though_nobody_reads_the_output(tmp_path):
    supervised = Supervised(tmp_path, FLOODS)
    try:
        wait_until((tmp_path / "printed").exists)
        supervised.send(signal.SIGTERM)
        assert supervised.process.wait(60) == 75
    finally:
        supervised.process.kill()
        supervised.process.communicate()
