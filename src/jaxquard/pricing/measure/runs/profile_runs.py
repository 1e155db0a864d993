"""The share of communication in a run, by JAX's profiler. One trace serves many programs: to start one is slow."""

import logging
import statistics
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxquard.pricing.communication.read_trace import Instructions, RunTrace, exposed_time, read_trace
from jaxquard.pricing.measure.runs.timed_program import TimedProgram
from jaxquard.pricing.measure.runs.watched_run import WatchedRun

_log = logging.getLogger(__name__)


def communication_shares(
    timed_programs: Mapping[int, TimedProgram], *, num_runs: int, limit_s: float, watch: WatchedRun
) -> dict[int, float]:
    """Returns for each program the part of a run in which devices communicate and do not compute.

    See `Price` for what that means. A program without collectives has none and is not run again. One that the profiler
    does not show is left out, and the log says why.

    Args:
        num_runs: how often each is run in the trace; the median counts. What was stopped early is run once.
        limit_s: after so many seconds a run counts as stalled.
    """
    programs = _instructions(timed_programs)
    shares = {number: 0.0 for number, program in programs.items() if not program.communicate}
    labels = {
        f"jaxquard run {number}.{run}": number
        for run in range(num_runs)
        for number in programs
        if number not in shares and not (run > 0 and timed_programs[number].was_stopped_early)
    }
    if labels:
        traces = _trace(timed_programs, labels, programs, limit_s=limit_s, watch=watch)
        for number in dict.fromkeys(labels.values()):
            found = [share_of(traces[label]) for label in labels if labels[label] == number and label in traces]
            known = [share for share in found if share is not None]
            if known:
                shares[number] = statistics.median(known)
            elif found:
                _log.warning("communication cannot be separated from computation: the trace shows no collective")
    return shares


def _instructions(timed_programs: Mapping[int, TimedProgram]) -> dict[int, Instructions]:
    """Returns the instructions of the programs whose compiled text can be read."""
    found = {}
    for number, timed in timed_programs.items():
        try:
            found[number] = Instructions.of(timed.text)
        except ValueError as error:
            _log.warning("communication cannot be separated from computation: a program cannot be read: %s", error)
    return found


def share_of(run: RunTrace) -> float | None:
    """The part of a run that is exposed communication, in the mean over devices; None if no collective was seen."""
    if not any(device.communication for device in run.devices.values()):
        return None
    exposed = [exposed_time(device.communication, device.compute) for device in run.devices.values()]
    return statistics.fmean(exposed) / run.duration_ns


def _trace(
    timed_programs: Mapping[int, TimedProgram],
    labels: Mapping[str, int],
    programs: Mapping[int, Instructions],
    *,
    limit_s: float,
    watch: WatchedRun,
) -> dict[str, RunTrace]:
    """Runs each label's program under one trace, and reads that."""
    with tempfile.TemporaryDirectory(prefix="jaxquard-trace-") as folder:
        try:
            jax.profiler.start_trace(folder, profiler_options=_options())
        except RuntimeError as error:
            _log.warning("communication cannot be separated from computation: no trace could be started: %s", error)
            return {}
        try:
            _run_all(timed_programs, labels, limit_s=limit_s, watch=watch)
        finally:
            jax.profiler.stop_trace()
        files = sorted(Path(folder).rglob("*.xplane.pb"))
        return _read(files, {label: programs[number] for label, number in labels.items()})


def _run_all(
    timed_programs: Mapping[int, TimedProgram], labels: Mapping[str, int], *, limit_s: float, watch: WatchedRun
) -> None:
    failed = set()
    for label, number in labels.items():
        if number in failed:
            continue
        try:
            watch.run(lambda timed=timed_programs[number], label=label: timed.run(label), limit_s=limit_s)
        except Exception as error:  # It ran before: its price stands, without the split.
            failed.add(number)
            _log.warning("communication cannot be separated from computation: a profiled run failed: %s", error)


def _options() -> Any:
    """No events of Python, and of the host only the important ones: those of XLA's instructions are among them."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    options.host_tracer_level = 1
    options.enable_hlo_proto = False
    return options


def _read(files: Sequence[Path], runs: Mapping[str, Instructions]) -> dict[str, RunTrace]:
    found: dict[str, RunTrace] = {}
    with warnings.catch_warnings():
        # On Python 3.12 the types of events are made with a warning; where warnings are errors, that ends the process.
        warnings.filterwarnings("ignore", message="builtin type .* has no __module__", category=DeprecationWarning)
        for file in files:
            found |= read_trace(jax.profiler.ProfileData.from_file(str(file)), runs)
    return found
