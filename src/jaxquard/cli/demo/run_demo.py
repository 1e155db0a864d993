"""Trains both ways for `jaxquard demo`, with progress; Ctrl-C ends it even while XLA compiles."""

import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from jaxquard.cli.demo.training import Devices, Outcome, Training, train_in_one_jit, train_on_actors
from jaxquard.cli.exit_codes import INTERRUPTED, print_message
from jaxquard.progress import ProgressBars


def run_demo(training: Training, devices: Devices, *, compare: bool) -> tuple[Outcome, Outcome | None]:
    """Trains on the actors, and in one jit if asked; Ctrl-C ends the process with one line."""
    in_one_jit = None
    # With Ray, this process compiles nothing, and Ctrl-C must end the actors: it comes through to the mesh.
    run_on_actors = _run if devices.runtime == "ray" else _run_interruptibly
    try:
        with ProgressBars() as bars:
            started = bars.add("starting the actors", name="Ray") if devices.runtime == "ray" else None
            compiled = bars.add("compiling the tasks", name="" if started else "tracing")
            on_step = bars.add("steps on the actors")

            def on_start() -> None:
                if started is not None:
                    started(devices.num_actors, devices.num_actors, "")

            def on_compile(done: int, total: int, name: str) -> None:
                compiled(done, total, name)
                if done == total:
                    on_step(0, training.num_steps, "building the state")

            on_actors = run_on_actors(
                lambda: train_on_actors(training, devices, on_start=on_start, on_compile=on_compile, on_step=on_step)
            )
            if compare:
                on_jit_step = bars.add("steps in one jit", name="compiling")
                in_one_jit = _run_interruptibly(lambda: train_in_one_jit(training, on_step=on_jit_step))
    except KeyboardInterrupt:
        _leave()
    return on_actors, in_one_jit


def _run(work: Callable[[], Any]) -> Any:
    return work()


def _run_interruptibly(work: Callable[[], Any]) -> Any:
    """Runs work in a thread: XLA does not notice Ctrl-C, but a thread that waits does."""
    results: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="jaxquard demo", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _leave() -> NoReturn:
    """Ends the process at once, as the usual way would wait for XLA to finish compiling."""
    print_message("interrupted. No timeline was written.")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(INTERRUPTED)
