"""Steps that are compiled once and run whole: coarsely all of them, then some in turns, then under the profiler."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax.sharding import Mesh

from jaxquard.pricing.communication.collectives import collectives
from jaxquard.pricing.compile.compilers import Compilers
from jaxquard.pricing.measure.machine.memory import available_bytes, peak_bytes
from jaxquard.pricing.measure.runs.paired_times import paired_errors, paired_program_times
from jaxquard.pricing.measure.runs.profile_runs import communication_shares
from jaxquard.pricing.measure.runs.run_rounds import RunBudget, run_rounds, spread_of
from jaxquard.pricing.measure.runs.timed_program import TimedProgram
from jaxquard.pricing.measure.runs.watched_run import WatchedRun
from jaxquard.pricing.outcomes import BestTimes, failure_of
from jaxquard.pricing.price import FailureReason
from jaxquard.pricing.program.fingerprint import Fingerprints
from jaxquard.pricing.program.lower_program import lower_program
from jaxquard.pricing.program.sharded_program import ShardedProgram

COARSE = RunBudget(num_warmups=1, num_runs=3, slow_factor=5.0, limit_s=60.0)
# Plans that are close differ by less than a busy machine's runs: more of them, until the minimum is confirmed.
FINE = RunBudget(num_warmups=3, num_runs=30, max_runs=90, extra_s=3.0, slow_factor=50.0, limit_s=60.0)
_WARM = RunBudget(num_warmups=1, num_runs=1, slow_factor=50.0, limit_s=60.0)
# One run's share of communication wanders by half; the median of these counts.
_NUM_PROFILED = 5
COARSE_ROUND = 8
# How many are done, of how many, and the next one's name.
OnStep = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeStep:
    """A step as compiled; `failure` says why there is none."""

    program: ShardedProgram
    executable: Any = None
    peak_bytes: int | None = None
    failure: str | None = None

    @property
    def sent_bytes(self) -> float | None:
        """Returns the bytes that its collectives send; None if it did not compile, or one stands in a loop. Slow."""
        found = () if self.executable is None else collectives(self.executable)
        if self.executable is None or any(collective.is_in_loop for collective in found):
            return None
        return sum(collective.sent_bytes for collective in found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """The time of the runs that count, and their spread; a failure if there are none.

    Attributes:
        time_s: by its runs beside those of the others (`paired_times`); `error` is how far that may be off.
    """

    time_s: float | None = None
    minimum_s: float | None = None
    spread: float | None = None
    error: float | None = None
    failure: str | None = None


class WholeSteps:
    """Compiled steps by name; equal programs are compiled and run once."""

    def __init__(self, mesh: Mesh, *, compilers: Compilers) -> None:
        """Steps for a mesh; what the compilers have compiled for a search is there already."""
        self._mesh, self._compilers = mesh, compilers
        self._fingerprints = Fingerprints()
        self._keys: dict[str, str] = {}
        self._steps: dict[str, WholeStep] = {}

    def compile(self, programs: Mapping[str, ShardedProgram], *, on_step: OnStep) -> None:
        """Compiles what is new, as many at a time as there are compilers."""
        begun: dict[str, tuple[ShardedProgram, Callable[[], Any]]] = {}
        for name, program in programs.items():
            key = self._keys[name] = self._fingerprints.key(program) or name
            if key not in self._steps and key not in begun:
                named = replace(program, name=name)
                begun[key] = named, self._begin(named)
        for done, (key, (program, finish)) in enumerate(begun.items()):
            on_step(done, len(begun), program.name)
            self._steps[key] = _finish(program, finish)
        on_step(len(begun), len(begun), "")

    def __getitem__(self, name: str) -> WholeStep:
        return self._steps[self._keys[name]]

    def same_as(self, names: Sequence[str]) -> list[str]:
        """These, and all others that are the same program as one of them."""
        keys = {self._keys[name] for name in names}
        return [*names, *(name for name, key in self._keys.items() if key in keys and name not in names)]

    def time(
        self, names: Sequence[str], budget: RunBudget, *, round_size: int | None, on_step: OnStep
    ) -> dict[str, Timing]:
        """Runs steps in turns, in rounds of so many (None: all in one, as far as they fit in memory)."""
        wanted = {self._keys[name]: self[name] for name in names}
        found = {key: Timing(failure=step.failure) for key, step in wanted.items() if step.failure is not None}
        running = {key: step for key, step in wanted.items() if step.failure is None}
        best = BestTimes()
        on_step(0, len(running), "")
        for together in self._rounds(running, round_size or len(running)):
            found |= self._run(together, budget, best)
            on_step(sum(key in found for key in running), len(running), next(iter(together.values())).program.name)
        return {name: found[self._keys[name]] for name in names}

    def shares(self, names: Sequence[str], *, on_step: OnStep) -> dict[str, float]:
        """Returns the share of communication of each step that the profiler shows it for."""
        wanted = {self._keys[name]: self[name] for name in names if self[name].failure is None}
        found: dict[str, float] = {}
        done = 0
        for together in self._rounds(wanted, COARSE_ROUND):
            on_step(done, len(wanted), next(iter(together.values())).program.name)
            done += len(together)
            with self._timed_programs(together, {}) as (timed_programs, watch, reject):
                run_rounds(
                    timed_programs,
                    groups=dict.fromkeys(timed_programs),
                    best=BestTimes(),
                    budget=_WARM,
                    watch=watch,
                    on_error=reject,
                )
                shares = communication_shares(timed_programs, num_runs=_NUM_PROFILED, limit_s=FINE.limit_s, watch=watch)
            found |= {key: shares[place] for place, key in enumerate(together) if place in shares}
        on_step(done, len(wanted), "")
        return {name: found[self._keys[name]] for name in names if self._keys[name] in found}

    def _begin(self, program: ShardedProgram) -> Callable[[], Any]:
        try:
            lowered = lower_program(program, mesh=self._mesh)
        except Exception as error:  # A plan that makes no sense to JAX; the others may.
            said = str(failure_of(program.name, FailureReason.NO_LOWERING, error))
            return lambda: said
        return self._compilers.start(lowered, free_outputs=tuple(spec is None for spec in program.out_specs))

    def _rounds(self, steps: Mapping[str, WholeStep], size: int) -> Iterator[dict[str, WholeStep]]:
        """Yields the steps that run in turns; together they take at most half of the memory."""
        available = available_bytes(self._mesh)
        together: dict[str, WholeStep] = {}
        for key, step in steps.items():
            total = sum(other.peak_bytes or 0 for other in together.values()) + (step.peak_bytes or 0)
            if together and (len(together) == size or (available is not None and 2 * total > available)):
                yield together
                together = {}
            together[key] = step
        if together:
            yield together

    def _run(self, together: Mapping[str, WholeStep], budget: RunBudget, best: BestTimes) -> dict[str, Timing]:
        found: dict[str, Timing] = {}
        with self._timed_programs(together, found) as (timed_programs, watch, reject):
            groups = dict.fromkeys(timed_programs)
            run_rounds(timed_programs, groups=groups, best=best, budget=budget, watch=watch, on_error=reject)
            keys = list(together)
            num_warmups = budget.num_warmups
            counted = {place: one.times_s[num_warmups:] for place, one in timed_programs.items()}
            errors = dict(zip(counted, paired_errors(list(counted.values())), strict=True))
            for place, time_s in paired_program_times(timed_programs, num_warmups=num_warmups).items():
                found[keys[place]] = Timing(
                    time_s=time_s,
                    minimum_s=timed_programs[place].minimum_s(num_warmups),
                    spread=spread_of(counted[place]),
                    error=errors[place],
                )
        return found

    @contextlib.contextmanager
    def _timed_programs(
        self, together: Mapping[str, WholeStep], found: dict[str, Timing]
    ) -> Iterator[tuple[dict[int, TimedProgram], WatchedRun, Callable[[int, Exception], None]]]:
        """Steps with their inputs, by place; what fails goes to `found`."""
        shared, watch = dict[Any, Any](), WatchedRun()
        timed_programs: dict[int, TimedProgram] = {}
        keys = list(together)

        def reject(place: int, error: Exception) -> None:
            timed_programs.pop(place, None)
            failure = failure_of(together[keys[place]].program.name, FailureReason.NO_RUN, error)
            found[keys[place]] = Timing(failure=str(failure))

        for place, step in enumerate(together.values()):
            try:
                timed_programs[place] = TimedProgram(step.program, step.executable, mesh=self._mesh, shared=shared)
            except Exception as error:  # Most likely no memory for its inputs.
                reject(place, error)
        try:
            yield timed_programs, watch, reject
        finally:
            watch.end(wait_s=1.0)
            timed_programs.clear()


def _finish(program: ShardedProgram, finish: Callable[[], Any]) -> WholeStep:
    try:
        compiled = finish()
        if isinstance(compiled, str):
            return WholeStep(program=program, failure=compiled)
        executable = compiled.executable
        return WholeStep(program=program, executable=executable, peak_bytes=peak_bytes(executable))
    except Exception as error:  # The compiler refuses this plan.
        return WholeStep(program=program, failure=str(failure_of(program.name, FailureReason.NO_COMPILATION, error)))
