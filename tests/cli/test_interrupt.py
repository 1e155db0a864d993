"""Ctrl-C ends a command wherever it comes."""

import signal
import subprocess
import sys

import pytest

from jaxquard.cli.main import main
from tests.cli.run_cli import environment

LOSE = """
import gc, signal, time
from jaxquard.cli.interrupt import keep_interrupts

lost = []
def after_a_collection(phase, info):
    if phase == "stop" and not lost:
        lost.append(phase)
        signal.raise_signal(signal.SIGINT)

keep_interrupts()
gc.callbacks.append(after_a_collection)
try:
    gc.collect()
    time.sleep(10)
except KeyboardInterrupt:
    print("interrupted")
print(len(lost))
"""


def run(script):
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240)
    return found.returncode, found.stdout.split(), found.stderr


@pytest.mark.slow
def test_where_a_garbage_collection_swallows_it():
    code, out, errors = run(LOSE)
    assert (code, out, errors) == (0, ["interrupted", "1"], "")


def test_a_command_is_kept_from_losing_it(monkeypatch):
    """An error raised after a collection is only printed, where nothing is done about it."""
    found = []
    monkeypatch.setattr("jaxquard.cli.main.app", lambda: found.append(sys.unraisablehook))
    monkeypatch.setattr(sys, "unraisablehook", print)
    before = signal.getsignal(signal.SIGINT)
    try:
        main()
    finally:
        signal.signal(signal.SIGINT, before)
    assert found[0] is not print
    assert found[0].__module__ == "jaxquard.cli.interrupt"


SWALLOW = """
import signal, sys
from jaxquard.cli.interrupt import end_early_interrupts

end_early_interrupts()
if "jax" in sys.argv:
    import jax
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    raise ImportError("as numpy does")
"""


@pytest.mark.parametrize(
    ("words", "code", "shown"), [((), 130, "interrupted"), (("jax",), 1, "ImportError: as numpy does")]
)
def test_before_jax_is_there_it_ends_at_once(words, code, shown):
    command = [sys.executable, "-c", SWALLOW, *words]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment())
    assert (found.returncode, found.stderr.splitlines()[-1]) == (code, shown)


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


def test_while_the_command_line_itself_is_imported():
    """Typer takes most of a tenth of a second."""
    script = """
import signal, sys
import jaxquard.__main__ as command

assert "typer" not in sys.modules

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
command.main()
"""
    assert run(script) == (130, [], "interrupted\n")
