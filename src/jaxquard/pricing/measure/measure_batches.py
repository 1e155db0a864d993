"""The work of one call of `MeasuredPricer`: look up, compile, run, keep, batch by batch."""

import itertools
import logging
import statistics
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from jax.sharding import Mesh

from jaxquard.pricing.cache import PriceCache
from jaxquard.pricing.compile.compilers import CompileHere, Compilers
from jaxquard.pricing.compile.partitioner_warnings import RematerializedCounts
from jaxquard.pricing.end_of_time import check_time
from jaxquard.pricing.measure.machine.environment import provenance_of
from jaxquard.pricing.measure.machine.memory import available_bytes, peak_bytes
from jaxquard.pricing.measure.outcomes import Ledger, Meter, failure_of, over_limit
from jaxquard.pricing.measure.runs.paired_times import paired_program_times
from jaxquard.pricing.measure.runs.profile_runs import communication_shares
from jaxquard.pricing.measure.runs.reference_program import ReferenceProgram
from jaxquard.pricing.measure.runs.run_blocks import LoopBudget, run_blocks
from jaxquard.pricing.measure.runs.run_rounds import BestTimes, RunBudget, spread_of
from jaxquard.pricing.measure.runs.timed_program import TimedProgram
from jaxquard.pricing.measure.runs.watched_run import WatchedRun
from jaxquard.pricing.price import FailureReason, Price
from jaxquard.pricing.program.fingerprint import combine_keys
from jaxquard.pricing.program.lower_program import lower_program, lowered_key
from jaxquard.pricing.program.sharded_program import ShardedProgram

# What may stay in memory beside all others takes at most one such part of it.
_SMALL_SHARE = 20
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PricingJob:
    """One program to measure.

    Attributes:
        numbers: its places in the call; equal programs are measured once.
        quick_key: the cheap key of its price; None if there is none.
    """

    numbers: tuple[int, ...]
    program: ShardedProgram
    group: Hashable
    quick_key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """A job whose compilation has begun.

    Attributes:
        finish: waits for it.
        again: compiles once more, at once.
        num_rematerialized: returns the number of values that the compiled program gathers whole.
    """

    job: PricingJob
    key: str
    text_key: str
    finish: Callable[[], Any]
    again: Callable[[], Any]
    num_rematerialized: Callable[[], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """A job that can run."""

    job: PricingJob
    key: str
    executable: Any
    peak_bytes: int
    num_rematerialized: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The tools of one call of the pricer, and the ledger that takes its results.

    Attributes:
        are_compared: whether programs of a round are compared by their runs side by side (`paired_times`).
        takes_medians: whether a price is the median of the runs that count, or their minimum.
        loops: the steps of each program as a training loop, which replace rounds; None for rounds.
        compiled: executables of programs that were compared, by the key of their text, with the number of values that
            they gather whole: they may run as loops next.
        rematerialized: receives the partitioner's warnings.
    """

    mesh: Mesh
    budget: RunBudget
    cache: PriceCache | None
    compilers: Compilers
    environment: str
    num_profiled_runs: int
    round_size: int
    memory_limit_bytes: int | None
    are_compared: bool
    takes_medians: bool
    ledger: Ledger
    best: BestTimes
    reference: ReferenceProgram
    watch: WatchedRun
    meter: Meter
    loops: LoopBudget | None = None
    compiled: dict[str, tuple[Any, int]] = field(default_factory=dict)
    rematerialized: RematerializedCounts = field(default_factory=RematerializedCounts)

    def measure_loops(self, jobs: Sequence[PricingJob], *, batch_size: int, end_s: float) -> None:
        """Compiles until a moment of the monotonic clock, then runs what is compiled; the others fail."""
        ready: list[_Ready] = []
        for batch in _split(jobs, batch_size):
            ready += self._finish(self._begin(batch, end_s=end_s))
        for together in self._rounds(ready):
            with self.meter.during("running_s"):
                self._run(together)

    def measure(self, jobs: Sequence[PricingJob], *, batch_size: int) -> None:
        """Measures all; each batch is compiled, then run."""
        batches = (self._begin(batch, end_s=self.budget.end_s) for batch in _split(jobs, batch_size))
        if self.compilers.may_overlap:
            batches = _one_ahead(batches)
        for begun in batches:
            ready = list(self._finish(begun))
            for together in self._rounds(ready):
                with self.meter.during("running_s"):
                    self._run(together)

    def _begin(self, jobs: Iterable[PricingJob], *, end_s: float) -> list[_Begun]:
        """Lowers jobs, looks whether what they lower to has a price, and lets the others be compiled."""
        begun = []
        for job in jobs:
            try:
                check_time(end_s)
                with self.meter.during("lowering_s"):
                    lowered = lower_program(job.program, mesh=self.mesh)
                    text_key = lowered_key(lowered)
                    key = combine_keys(self.environment, text_key)
            except Exception as error:  # A candidate that makes no sense to JAX; the others may.
                self._reject(job, FailureReason.NO_LOWERING, error)
                continue
            known = None if self.cache is None else self.cache.find(key)
            if known is not None:
                self._settle(job, key, known, is_cached=True)
                continue
            if (compiled := self.compiled.get(text_key)) is not None:
                give, count = (partial(_identity, value) for value in compiled)
                begun.append(
                    _Begun(job=job, key=key, text_key=text_key, finish=give, again=give, num_rematerialized=count)
                )
                continue
            free_outputs = tuple(spec is None for spec in job.program.out_specs)
            with self.meter.during("compiling_s"):
                finish = self.compilers.start(lowered, free_outputs=free_outputs, end_s=end_s)
            here = CompileHere(on_rematerialized=self.rematerialized.add)
            again = here.start(lowered, free_outputs=free_outputs, end_s=end_s)
            count = partial(self.rematerialized.take, lowered)
            begun.append(
                _Begun(job=job, key=key, text_key=text_key, finish=finish, again=again, num_rematerialized=count)
            )
        return begun

    def _finish(self, begun: Sequence[_Begun]) -> Iterator[_Ready]:
        """Returns the jobs that compiled and fit."""
        for done, item in enumerate(begun):
            self.ledger.report(f"compiling {done + 1} of {len(begun)}")
            try:
                with self.meter.during("compiling_s"):
                    executable = self._compiled(item)
                needed = peak_bytes(executable)
            except Exception as error:  # The compiler refuses this candidate.
                self._reject(item.job, FailureReason.NO_COMPILATION, error)
                continue
            num_rematerialized = item.num_rematerialized()
            if num_rematerialized:
                _log.info("%s: the partitioner gathers %d values whole", item.job.program.name, num_rematerialized)
            if self.are_compared:
                self.compiled[item.text_key] = executable, num_rematerialized
            available = self._available_for(needed)
            if available is not None and needed > available:
                for number in item.job.numbers:
                    name = item.job.program.name
                    self.ledger.settle(number, over_limit(name, needed_bytes=needed, available_bytes=available))
                continue
            yield _Ready(
                job=item.job,
                key=item.key,
                executable=executable,
                peak_bytes=needed,
                num_rematerialized=num_rematerialized,
            )

    def _compiled(self, begun: _Begun) -> Any:
        """The outcome of compiling it.

        A GPU's compiler tries kernels out on the device, and finds no memory for it if a round beside it takes all.
        """
        try:
            return begun.finish()
        except Exception as error:
            reason = failure_of("", FailureReason.NO_COMPILATION, error).reason
            if reason is not FailureReason.OUT_OF_MEMORY or not self.compilers.may_overlap:
                raise
        self.reference.stop()
        return begun.again()

    def _available_for(self, needed_bytes: int) -> int | None:
        """The memory there is; before it is too little, our own program lets go of its part."""
        available = self.memory_limit_bytes or available_bytes(self.mesh)
        if available is not None and needed_bytes > available and self.memory_limit_bytes is None:
            self.reference.stop()
            available = available_bytes(self.mesh)
        return available

    def _rounds(self, ready: Sequence[_Ready]) -> Iterator[list[_Ready]]:
        """Splits them into rounds whose programs fit into memory beside each other."""
        available = self.memory_limit_bytes or available_bytes(self.mesh)
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
            failure = failure_of("", FailureReason.NO_RUN, error)
            if failure.reason is FailureReason.OUT_OF_MEMORY and len(together) > 1:
                crowded.append(together[position])
            else:
                self._reject(together[position].job, FailureReason.NO_RUN, error)

        for position, item in enumerate(together):
            try:
                timed_programs[position] = TimedProgram(
                    item.job.program, item.executable, mesh=self.mesh, shared=shared
                )
            except Exception as error:  # Most likely no memory for its inputs.
                reject(position, error)
        if self.loops is not None:
            report = self._report_block
            run_blocks(timed_programs, budget=self.loops, watch=self.watch, on_error=reject, on_block=report)
            self._settle_all(together, timed_programs)
        else:
            self._run_rounds(together, timed_programs, reject)
        timed_programs.clear()
        shared.clear()
        for item in crowded:
            self.reference.stop()
            self._run([item])

    def _run_rounds(
        self,
        together: Sequence[_Ready],
        timed_programs: dict[int, TimedProgram],
        reject: Callable[[int, Exception], None],
    ) -> None:
        self.reference.run(
            timed_programs,
            groups={position: item.job.group for position, item in enumerate(together)},
            best=self.best,
            budget=self.budget,
            watch=self.watch,
            on_error=reject,
            on_round=self._report_round,
            small=[position for position, item in enumerate(together) if self._is_small(item)],
        )
        self._settle_all(together, timed_programs)

    def _settle_all(self, together: Sequence[_Ready], timed_programs: Mapping[int, TimedProgram]) -> None:
        """Notes the prices of what has run."""
        shares = self._communication_shares(timed_programs)
        times_s = self._times(timed_programs)
        for position, timed in timed_programs.items():
            item = together[position]
            price = self._price(item, timed, time_s=times_s[position], share=shares.get(position))
            self._settle(item.job, item.key, price)

    def _report_round(self, done: int, most: int) -> None:
        # Others are soon done, and the program is of more interest.
        if self.are_compared:
            self.ledger.report(f"round {done} of at most {most}")

    def _report_block(self, done: int, total: int) -> None:
        self.ledger.report(f"training loops: block {done + 1} of {total}")

    def _is_small(self, ready: _Ready) -> bool:
        available = self.memory_limit_bytes or available_bytes(self.mesh)
        return available is None or _SMALL_SHARE * ready.peak_bytes <= available

    def _communication_shares(self, timed_programs: Mapping[int, TimedProgram]) -> Mapping[int, float]:
        if self.num_profiled_runs == 0:
            return {}
        return communication_shares(
            timed_programs, num_runs=self.num_profiled_runs, limit_s=self.budget.limit_s, watch=self.watch
        )

    def _times(self, timed_programs: Mapping[int, TimedProgram]) -> dict[int, float]:
        """The seconds of each."""
        if self.loops is not None:
            return {position: statistics.median(timed.times_s) for position, timed in timed_programs.items()}
        num_warmups = self.budget.num_warmups
        if self.are_compared:
            return paired_program_times(timed_programs, num_warmups=num_warmups)
        if self.takes_medians:
            return {position: timed.median_s(num_warmups) for position, timed in timed_programs.items()}
        return {position: timed.minimum_s(num_warmups) for position, timed in timed_programs.items()}

    def _price(self, ready: _Ready, timed: TimedProgram, *, time_s: float, share: float | None) -> Price:
        counted = timed.times_s[self.budget.num_warmups :]
        return Price(
            time_s=time_s,
            compute_s=None if share is None else (1 - share) * time_s,
            communication_s=None if share is None else share * time_s,
            peak_bytes=ready.peak_bytes,
            spread=None if timed.was_stopped_early else spread_of(counted),
            provenance=provenance_of(self.mesh, num_runs=len(counted), was_stopped_early=timed.was_stopped_early),
            num_rematerialized=ready.num_rematerialized,
        )

    def _settle(self, job: PricingJob, key: str, price: Price, *, is_cached: bool = False) -> None:
        # One without the split that was asked for is used, but not kept.
        is_whole = self.num_profiled_runs == 0 or price.communication_s is not None
        # Nor is one whose runs may have been cut off.
        is_whole = is_whole and (is_cached or time.monotonic() < self.budget.end_s)
        if self.cache is not None and is_whole:
            if not is_cached:
                self.cache.store(key, price, name=job.program.name)
            if job.quick_key is not None:
                self.cache.add_alias(job.quick_key, key)
        self.best.note(job.group, price.time_s)
        for number in job.numbers:
            self.ledger.settle(number, price, is_cached=is_cached)

    def _reject(self, job: PricingJob, reason: FailureReason, error: Exception) -> None:
        for number in job.numbers:
            self.ledger.settle(number, failure_of(job.program.name, reason, error))


def _identity(value: Any) -> Any:
    return value


def _split(jobs: Sequence[PricingJob], size: int) -> Iterator[Sequence[PricingJob]]:
    for start in range(0, len(jobs), size):
        yield jobs[start : start + size]


def _one_ahead(batches: Iterator[list[_Begun]]) -> Iterator[list[_Begun]]:
    """Begins the next batch before it gives one."""
    for one, _ in itertools.pairwise(itertools.chain(batches, [[]])):
        yield one
