"""Ctrl-C ends a command wherever it comes."""

import subprocess
import sys

LOSE = """
import gc, signal, sys, time

lost = []
def after_a_collection(phase, info):
    if phase == "stop" and len(lost) < 3:
        lost.append(phase)
        signal.raise_signal(signal.SIGINT)

if "keep" in sys.argv:
    from jaxquard.cli.interrupt import keep_interrupts
    keep_interrupts()
gc.callbacks.append(after_a_collection)
try:
    for _ in range(3):
        gc.collect()
    time.sleep(2)
except KeyboardInterrupt:
    print("interrupted")
print(len(lost))
"""


def run(script, *words):
    found = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=60)
    return found.returncode, found.stdout.split(), found.stderr


def test_where_a_garbage_collection_swallows_it():
    code, out, errors = run(LOSE, "keep")
    assert (code, out[0], errors) == (0, "interrupted", "")
    # Without it, the program goes on to its end: this is what the test is about.
    code, out, errors = run(LOSE)
    assert (code, out) == (0, ["3"])
    assert errors.count("KeyboardInterrupt") == 3


def test_other_exceptions_are_reported_as_before():
    script = """
from jaxquard.cli.interrupt import keep_interrupts

class Broken:
    def __del__(self):
        raise ValueError("in a __del__")

keep_interrupts()
Broken()
"""
    code, out, errors = run(script)
    assert (code, out) == (0, [])
    assert "ValueError: in a __del__" in errors
