"""The backend that measures: programs of a call are compiled, then run in rounds or as loops, batch by batch."""

import itertools
import logging
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from jax.sharding import Mesh

from jaxquard.pricing.compile.compilers import Compiled, CompileHere, Compilers
from jaxquard.pricing.measure.machine.environment import provenance_of
from jaxquard.pricing.measure.machine.memory import available_bytes, peak_bytes
from jaxquard.pricing.measure.runs.paired_times import paired_program_times
from jaxquard.pricing.measure.runs.profile_runs import communication_shares
from jaxquard.pricing.measure.runs.reference_program import ReferenceProgram
from jaxquard.pricing.measure.runs.run_blocks import LoopBudget, run_blocks
from jaxquard.pricing.measure.runs.run_rounds import RunBudget, spread_of
from jaxquard.pricing.measure.runs.timed_program import TimedProgram
from jaxquard.pricing.measure.runs.watched_run import WatchedRun
from jaxquard.pricing.outcomes import failure_of, over_limit
from jaxquard.pricing.price import FailureReason, Price
from jaxquard.pricing.pricing_call import PricingCall, PricingJob

# What may stay in memory beside all others takes at most one such part of it.
_SMALL_SHARE = 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """A job that can run."""

    job: PricingJob
    compiled: Compiled
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The tools of one call of the pricer.

    Attributes:
        are_compared: whether programs of a round are compared by their runs side by side (`paired_times`).
        takes_medians: whether a price is the median of the runs that count, or their minimum.
        loops: the steps of each program as a training loop, which replace rounds; None for rounds.
        compiled: programs that were compared, by the key of their text: they may run as loops next.
    """

    mesh: Mesh
    call: PricingCall
    budget: RunBudget
    compilers: Compilers
    num_profiled_runs: int
    round_size: int
    memory_limit_bytes: int | None
    are_compared: bool
    takes_medians: bool
    reference: ReferenceProgram
    watch: WatchedRun
    loops: LoopBudget | None
    compiled: dict[str, Compiled]

    def measure(self, *, batch_size: int, compile_end_s: float) -> None:
        """Measures all; each batch is compiled, then run; the next one is compiled meanwhile where that disturbs none.

        Args:
            compile_end_s: when nothing is compiled any more.
        """
        jobs = self.call.jobs(end_s=compile_end_s)
        begun = ([self._begin(job, compile_end_s) for job in batch] for batch in _split(jobs, batch_size))
        for batch in _one_ahead(begun) if self.compilers.may_overlap else begun:
            for together in self._rounds(list(self._finish(batch))):
                with self.call.meter.during("running_s"):
                    self._run(together)

    def _begin(self, job: PricingJob, end_s: float) -> tuple[PricingJob, Callable[[], Compiled]]:
        if (known := self.compiled.get(job.text_key)) is not None:
            return job, lambda: known
        free_outputs = tuple(spec is None for spec in job.program.out_specs)
        with self.call.meter.during("compiling_s"):
            return job, self.compilers.start(job.lowered, free_outputs=free_outputs, end_s=end_s)

    def _finish(self, begun: Sequence[tuple[PricingJob, Callable[[], Compiled]]]) -> Iterator[_Ready]:
        """Yields the jobs that compiled and fit."""
        for done, (job, finish) in enumerate(begun):
            self.call.report(f"compiling {done + 1} of {len(begun)}")
            try:
                with self.call.meter.during("compiling_s"):
                    compiled = self._wait(job, finish)
                needed = peak_bytes(compiled.executable)
            except Exception as error:  # The compiler refuses this candidate.
                self.call.fail(job, FailureReason.NO_COMPILATION, error)
                continue
            self.call.meter.add_compile_work(0.0 if job.text_key in self.compiled else compiled.work_s)
            if compiled.num_rematerialized:
                count = compiled.num_rematerialized
                _log.info("%s: the partitioner gathers %d values whole", job.program.name, count)
            if self.are_compared:
                self.compiled[job.text_key] = compiled
            available = self._available_for(needed)
            if available is not None and needed > available:
                name = job.program.name
                self.call.settle(job, over_limit(name, needed_bytes=needed, available_bytes=available))
                continue
            yield _Ready(job=job, compiled=compiled, peak_bytes=needed)

    def _wait(self, job: PricingJob, finish: Callable[[], Compiled]) -> Compiled:
        """Waits for the compiler.

        A GPU's tries kernels out on the device, and finds no memory for it if a round beside it takes all.
        """
        try:
            return finish()
        except Exception as error:
            reason = failure_of("", FailureReason.NO_COMPILATION, error).reason
            if reason is not FailureReason.OUT_OF_MEMORY or not self.compilers.may_overlap:
                raise
        self.reference.stop()
        return CompileHere().start(job.lowered, free_outputs=(), end_s=self.call.end_s)()

    def _available(self) -> int | None:
        return self.memory_limit_bytes or available_bytes(self.mesh)

    def _available_for(self, needed_bytes: int) -> int | None:
        """The memory there is; before it is too little, our own program lets go of its part."""
        available = self._available()
        if available is not None and needed_bytes > available and self.memory_limit_bytes is None:
            self.reference.stop()
            available = available_bytes(self.mesh)
        return available

    def _rounds(self, ready: Sequence[_Ready]) -> Iterator[list[_Ready]]:
        """Splits them into rounds whose programs fit into memory beside each other."""
        available = self._available()
        together: list[_Ready] = []
        for item in ready:
            total = sum(other.peak_bytes for other in together) + item.peak_bytes
            if together and (len(together) == self.round_size or (available is not None and total > available)):
                yield together
                together = []
            together.append(item)
        if together:
            yield together

    def _run(self, together: Sequence[_Ready]) -> None:
        """Times them in turns; what finds no memory beside the others is tried again alone."""
        shared: dict[Any, Any] = {}
        timed_programs: dict[int, TimedProgram] = {}
        crowded: list[_Ready] = []

        def reject(position: int, error: Exception) -> None:
            timed_programs.pop(position, None)
            reason = failure_of("", FailureReason.NO_RUN, error).reason
            if reason is FailureReason.OUT_OF_MEMORY and len(together) > 1:
                crowded.append(together[position])
            else:
                self.call.fail(together[position].job, FailureReason.NO_RUN, error)

        for position, item in enumerate(together):
            program, executable = item.job.program, item.compiled.executable
            try:
                timed_programs[position] = TimedProgram(program, executable, mesh=self.mesh, shared=shared)
            except Exception as error:  # Most likely no memory for its inputs.
                reject(position, error)
        self._time(together, timed_programs, reject)
        self._settle_all(together, timed_programs)
        timed_programs.clear()
        shared.clear()
        for item in crowded:
            self.reference.stop()
            self._run([item])

    def _settle_all(self, together: Sequence[_Ready], timed_programs: Mapping[int, TimedProgram]) -> None:
        """Settles what has run; no program is held here when others are tried again."""
        shares, times_s = self._communication_shares(timed_programs), self._times(timed_programs)
        for position, timed in timed_programs.items():
            price = self._price(together[position], timed, time_s=times_s[position], share=shares.get(position))
            # One without the split that was asked for is used, but not kept, nor is one whose runs may be cut off.
            is_whole = self.num_profiled_runs == 0 or price.communication_s is not None
            self.call.settle(together[position].job, price, keep=is_whole and time.monotonic() < self.budget.end_s)

    def _time(
        self,
        together: Sequence[_Ready],
        timed_programs: dict[int, TimedProgram],
        reject: Callable[[int, Exception], None],
    ) -> None:
        watch = self.watch
        if self.loops is not None:
            report = partial(self._report, "training loops: block {} of {}", 1)
            run_blocks(timed_programs, budget=self.loops, watch=watch, on_error=reject, on_block=report)
            return
        available = self._available()
        self.reference.run(
            timed_programs,
            groups={position: item.job.group for position, item in enumerate(together)},
            best=self.call.best,
            budget=self.budget,
            watch=watch,
            on_error=reject,
            # Others are soon done, and the program is of more interest.
            on_round=partial(self._report, "round {} of at most {}" if self.are_compared else "", 0),
            small=[
                position
                for position, item in enumerate(together)
                if available is None or _SMALL_SHARE * item.peak_bytes <= available
            ],
        )

    def _report(self, words: str, first: int, done: int, most: int) -> None:
        if words:
            self.call.report(words.format(done + first, most))

    def _communication_shares(self, timed_programs: Mapping[int, TimedProgram]) -> Mapping[int, float]:
        if self.num_profiled_runs == 0:
            return {}
        return communication_shares(
            timed_programs, num_runs=self.num_profiled_runs, limit_s=self.budget.limit_s, watch=self.watch
        )

    def _times(self, timed_programs: Mapping[int, TimedProgram]) -> dict[int, float]:
        """The seconds of each."""
        num_warmups = self.budget.num_warmups
        if self.loops is not None:
            return {position: statistics.median(timed.times_s) for position, timed in timed_programs.items()}
        if self.are_compared:
            return paired_program_times(timed_programs, num_warmups=num_warmups)
        find = TimedProgram.median_s if self.takes_medians else TimedProgram.minimum_s
        return {position: find(timed, num_warmups) for position, timed in timed_programs.items()}

    def _price(self, ready: _Ready, timed: TimedProgram, *, time_s: float, share: float | None) -> Price:
        counted = timed.times_s[self.budget.num_warmups :]
        return Price(
            time_s=time_s,
            compute_s=None if share is None else (1 - share) * time_s,
            communication_s=None if share is None else share * time_s,
            peak_bytes=ready.peak_bytes,
            spread=None if timed.was_stopped_early else spread_of(counted),
            provenance=provenance_of(self.mesh, num_runs=len(counted), was_stopped_early=timed.was_stopped_early),
            num_rematerialized=ready.compiled.num_rematerialized,
        )


def _split(jobs: Iterator[PricingJob], size: int) -> Iterator[Iterable[PricingJob]]:
    """Yields jobs in batches; each is lowered as it is asked for."""
    for first in jobs:
        yield itertools.chain([first], itertools.islice(jobs, size - 1))


def _one_ahead(batches: Iterable[Any]) -> Iterator[Any]:
    """Begins the next batch before it gives one."""
    for one, _ in itertools.pairwise(itertools.chain(batches, [[]])):
        yield one
