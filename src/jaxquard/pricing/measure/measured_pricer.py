"""Prices by measurement: each program is compiled as a real SPMD program and run on the mesh (section 4.2 of CFP).

Programs are taken in batches: a batch is compiled, then run in rounds (`run_rounds`), then its prices are kept on disk,
so that an interrupted search goes on where it was. Where compilers leave the devices alone, the next batch is compiled
meanwhile. A program that does not compile, fit or run fails by name.
"""

import math
import time
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any, Literal

from jax.sharding import Mesh

from jaxquard.pricing.batch_pricer import BatchPricer
from jaxquard.pricing.cache import PriceCache
from jaxquard.pricing.compile.compilers import CompileHere, Compilers, choose_compilers
from jaxquard.pricing.compile.partitioner_warnings import RematerializedCounts
from jaxquard.pricing.host_cores import num_cores
from jaxquard.pricing.measure.machine.environment import environment_key
from jaxquard.pricing.measure.measure_batches import Measurement, PricingJob
from jaxquard.pricing.measure.outcomes import Ledger, Meter, TimeBreakdown
from jaxquard.pricing.measure.runs.reference_program import ReferenceProgram
from jaxquard.pricing.measure.runs.run_blocks import LoopBudget
from jaxquard.pricing.measure.runs.run_rounds import BestTimes, RunBudget
from jaxquard.pricing.measure.runs.watched_run import WatchedRun
from jaxquard.pricing.price import Failure, OnProgress, Price
from jaxquard.pricing.program.fingerprint import Fingerprints, combine_keys
from jaxquard.pricing.program.lower_program import lower_program, lowered_key
from jaxquard.pricing.program.sharded_program import ShardedProgram, automatic_mesh

# With fewer programs, starting processes takes longer than they save.
_FEWEST_FOR_COMPILERS = 8
DEFAULT_MAX_RUNS = 40
# On a host with many cores a batch is no larger: prices are kept, and devices run, only when one is compiled.
_MOST_TOGETHER = 32
# Candidates that are still so close have up to so many times as many runs, if each takes no more seconds than these.
_CLOSE = 0.05
_FINE_RUNS, _FINE_EXTRA_S = 4, 8.0
# Seen on 2 cores: all that ran for 0.4 s took three times as long.
_FAIR_S = 1.0


class MeasuredPricer(BatchPricer):
    """Prices programs by running them on a mesh.

    It keeps its compiler processes for further calls; `close`, or leaving it as a context, ends them.

    Example:
        >>> mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> w = jax.ShapeDtypeStruct((64, 64), jnp.float32)
        >>> program = jq.pricing.ShardedProgram(
        ...     name="x @ w",
        ...     jaxpr=jax.make_jaxpr(jnp.matmul)(w, w),
        ...     in_specs=(jax.P("x"), jax.P()),
        ...     out_specs=(jax.P("x"),),
        ... )
        >>> with jq.pricing.MeasuredPricer(mesh, num_runs=2, max_runs=2, cache=None) as pricer:
        ...     price = pricer.price(program)
        >>> price.time_s > 0, price.provenance.num_devices
        (True, 8)
    """

    def __init__(
        self,
        mesh: Mesh,
        *,
        num_warmups: int = 5,
        num_runs: int = 10,
        max_runs: int = DEFAULT_MAX_RUNS,
        num_profiled_runs: int = 0,
        cache: PriceCache | Literal["default"] | None = "default",
        num_compilers: int | None = None,
        slow_factor: float = 2.5,
        limit_s: float = 120.0,
        compile_limit_s: float = 600.0,
        round_size: int = 8,
        memory_limit_bytes: int | None = None,
        takes_medians: bool = False,
    ) -> None:
        """A pricer for a mesh.

        Args:
            mesh: devices of this process; its axes are taken as automatic ones.
            num_warmups: runs before those that count.
            num_runs: runs that count, at least.
            max_runs: runs that count, at most: if the machine is noisy there are more than `num_runs` (see
                `run_rounds`). No more than `num_runs` if this is less.
            num_profiled_runs: runs after those, under JAX's profiler, which separate communication from
                computation (see `Price`); 0 for no such split. 3 do.
            cache: where prices are kept: the user's own folder, another, or nowhere.
            num_compilers: how many programs are compiled at a time, 32 at most; None for as many as there are cores.
            slow_factor: a program that takes so many times as long as the best of its group is stopped early.
            limit_s: seconds that all runs of a program may take; one that takes so long alone fails.
            compile_limit_s: the same for compiling it, where processes of their own compile.
            round_size: how many programs are run in turns.
            memory_limit_bytes: what a program may take on each device; None for what is free.
            takes_medians: a price is the median of the runs that count. Noise moves their minimum less, so programs are
                compared by that; but a step, whose devices wait for each other, takes the medians of its parts.
        """
        assert num_warmups >= 0
        assert num_runs >= 1
        assert num_profiled_runs >= 0
        self._num_profiled_runs = num_profiled_runs
        self._mesh = mesh = automatic_mesh(mesh)
        self._budget = RunBudget(
            num_warmups=num_warmups, num_runs=num_runs, max_runs=max_runs, slow_factor=slow_factor, limit_s=limit_s
        )
        self._cache = PriceCache() if cache == "default" else cache
        num_compilers = min(num_cores() if num_compilers is None else num_compilers, _MOST_TOGETHER)
        self._meter = Meter()
        self._rematerialized = RematerializedCounts()
        self._compilers = choose_compilers(
            mesh,
            num_compilers=num_compilers,
            limit_s=compile_limit_s,
            on_compiled=self._meter.add_compile_work,
            on_rematerialized=self._rematerialized.add,
        )
        # They hold what they have compiled, so once there are some, even a few programs go to them.
        self._has_compilers = False
        self._reference = ReferenceProgram()
        self._compiled: dict[str, Any] = {}
        self._num_compilers = num_compilers
        self._batch_size = max(round_size, num_compilers)
        self._round_size = round_size
        self._memory_limit_bytes = memory_limit_bytes
        self._takes_medians = takes_medians

    def close(self) -> None:
        """Ends the compiler processes; another call starts new ones."""
        self._compilers.stop()
        self._reference.stop()
        self._compiled.clear()
        self._has_compilers = False

    @property
    def mesh(self) -> Mesh:
        """The mesh that it runs programs on."""
        return self._mesh

    @property
    def compilers(self) -> Compilers:
        """The compilers that it uses; they hold what they have compiled until they end."""
        return self._compilers

    @property
    def time_breakdown(self) -> TimeBreakdown:
        """The time of all calls so far, by activity."""
        return self._meter.time_breakdown

    def provenance_key(self) -> str:
        """Returns a key of all that decides a price beside the program: devices, settings, runs."""
        return combine_keys("measured", self._environment(self._budget, None))

    def price_all(
        self,
        programs: Sequence[ShardedProgram],
        *,
        groups: Sequence[Hashable] | None = None,
        on_progress: OnProgress | None = None,
        end_s: float = math.inf,
    ) -> list[Price | Failure]:
        """The prices of many, in their order; see `Pricer`."""
        return self._measure(
            programs,
            groups,
            budget=self._budget,
            round_size=self._round_size,
            cache=self._cache,
            candidates=None,
            on_progress=on_progress,
            end_s=end_s,
        )

    def compare(
        self,
        programs: Sequence[ShardedProgram],
        *,
        groups: Sequence[Hashable] | None = None,
        on_progress: OnProgress | None = None,
        end_s: float = math.inf,
    ) -> list[Price | Failure]:
        """Prices close candidates in one round, with three times as many runs, compared side by side; see `Pricer`.

        Times of different days do not show which is best: all prices come from disk, from a call with the same
        programs, or all are measured now.
        """
        num_runs = 3 * self._budget.num_runs
        max_runs = 0 if self._budget.max_runs <= self._budget.num_runs else _FINE_RUNS * num_runs
        budget = replace(
            self._budget, num_runs=num_runs, max_runs=max_runs, extra_s=_FINE_EXTRA_S, fair_s=_FAIR_S, close=_CLOSE
        )
        candidates, cache = self._cache_of_one_moment(programs, budget, None)
        return self._measure(
            programs,
            groups,
            budget=budget,
            round_size=len(programs),
            cache=cache,
            candidates=candidates,
            on_progress=on_progress,
            end_s=end_s,
        )

    def price_loops(
        self,
        programs: Sequence[ShardedProgram],
        *,
        budget_s: float,
        on_progress: OnProgress | None = None,
        end_s: float = math.inf,
    ) -> list[Price | Failure]:
        """Prices steps of training loops, in short blocks of each; see `LoopPricer`.

        As in `compare`, all prices come from disk, or all are measured now.
        """
        budget, loops = replace(self._budget, num_warmups=0), LoopBudget(limit_s=self._budget.limit_s)
        compiled_s = min(time.monotonic() + budget_s, end_s)
        candidates, cache = self._cache_of_one_moment(programs, budget, loops)
        return self._measure(
            programs,
            None,
            budget=budget,
            round_size=len(programs),
            cache=cache,
            candidates=candidates,
            on_progress=on_progress,
            loops=loops,
            compiled_s=compiled_s,
            end_s=end_s,
        )

    def _cache_of_one_moment(
        self, programs: Sequence[ShardedProgram], budget: RunBudget, loops: LoopBudget | None
    ) -> tuple[str, PriceCache | None]:
        """Returns a key of all programs, and the cache; one that finds nothing unless it knows all of them."""
        keys = self._keys(programs)
        candidates = combine_keys(*sorted(key for key, _ in keys))
        cache = self._cache
        if cache is not None and not self._knows_all(keys, cache, self._environment(budget, candidates, loops)):
            cache = _OnlyKeeps(cache.folder)
        return candidates, cache

    def _keys(self, programs: Sequence[ShardedProgram]) -> list[tuple[str, bool]]:
        """The key of each program, and whether it is a cheap one; else the program is lowered."""
        fingerprints = Fingerprints()

        def key_of(program: ShardedProgram) -> tuple[str, bool]:
            fingerprint = fingerprints.key(program)
            if fingerprint is not None:
                return fingerprint, True
            try:
                return lowered_key(lower_program(program, mesh=self._mesh)), False
            except Exception:  # It makes no sense to JAX; measuring it says so.
                return "", False

        return list(map(key_of, programs))

    def _knows_all(self, keys: Sequence[tuple[str, bool]], cache: PriceCache, environment: str) -> bool:
        def is_known(key: str, is_cheap: bool) -> bool:
            combined = combine_keys(environment, key)
            return (cache.find_quickly(combined) if is_cheap else cache.find(combined)) is not None

        return all(is_known(key, is_cheap) for key, is_cheap in keys)

    def _measure(
        self,
        programs: Sequence[ShardedProgram],
        groups: Sequence[Hashable] | None,
        *,
        budget: RunBudget,
        round_size: int,
        cache: PriceCache | None,
        candidates: str | None,
        on_progress: OnProgress | None,
        loops: LoopBudget | None = None,
        compiled_s: float = math.inf,
        end_s: float,
    ) -> list[Price | Failure]:
        """Measures what has no price yet.

        Args:
            candidates: a key of all programs, if their times are of one moment.
            compiled_s: when loops are compiled no more.
        """
        ledger = Ledger([program.name for program in programs], on_progress)
        best, watch = BestTimes(), WatchedRun()
        environment = self._environment(budget, candidates, loops)
        jobs = _find_missing(programs, groups or [None] * len(programs), cache, environment, ledger, best)
        # Only a process can be ended while it compiles.
        self._has_compilers |= len(jobs) >= _FEWEST_FOR_COMPILERS or (bool(jobs) and math.isfinite(end_s))
        here = CompileHere(on_compiled=self._meter.add_compile_work, on_rematerialized=self._rematerialized.add)
        measurement = Measurement(
            mesh=self._mesh,
            budget=replace(budget, end_s=end_s),
            cache=cache,
            compilers=self._compilers if self._has_compilers else here,
            environment=environment,
            num_profiled_runs=self._num_profiled_runs,
            round_size=round_size,
            memory_limit_bytes=self._memory_limit_bytes,
            are_compared=candidates is not None and loops is None,
            takes_medians=self._takes_medians,
            ledger=ledger,
            best=best,
            reference=self._reference,
            watch=watch,
            meter=self._meter,
            loops=None if loops is None else replace(loops, end_s=end_s),
            compiled=self._compiled,
            rematerialized=self._rematerialized,
        )
        try:
            if loops is None:
                measurement.measure(jobs, batch_size=max(self._batch_size, round_size))
            else:
                measurement.measure_loops(jobs, batch_size=max(1, self._num_compilers), end_s=compiled_s)
        except BaseException:
            self.close()
            raise
        finally:
            watch.end(wait_s=1.0)
        return ledger.results()

    def _environment(self, budget: RunBudget, candidates: str | None, loops: LoopBudget | None = None) -> str:
        """Returns the key of everything beside the program that decides a price."""
        measured: dict[str, Any] = {"num_warmups": budget.num_warmups, "num_runs": budget.num_runs}
        if candidates is not None:
            # Each compared with each; before, all with the median of their round.
            measured["each with each"] = candidates
        # What is not asked for is no part of the key, so that prices of before there were these settings stay good.
        if budget.max_runs != DEFAULT_MAX_RUNS:
            measured["max_runs"] = budget.max_runs
        if loops is not None:
            measured["loop"] = f"{loops.num_blocks} blocks of {loops.num_steps}"
        if self._takes_medians:
            measured["takes_medians"] = True
        if self._num_profiled_runs:
            measured["num_profiled_runs"] = self._num_profiled_runs
        return environment_key(self._mesh, **measured)


class _OnlyKeeps(PriceCache):
    """A cache that keeps prices and finds none."""

    def find(self, key: str) -> Price | None:
        return None


def _find_missing(
    programs: Sequence[ShardedProgram],
    groups: Sequence[Hashable],
    cache: PriceCache | None,
    environment: str,
    ledger: Ledger,
    best: BestTimes,
) -> list[PricingJob]:
    """Settles what has a price on disk, and joins what is equal."""
    fingerprints = Fingerprints()
    missing: dict[Hashable, PricingJob] = {}
    for number, (program, group) in enumerate(zip(programs, groups, strict=True)):
        fingerprint = fingerprints.key(program)
        quick_key = None if fingerprint is None else combine_keys(environment, fingerprint)
        known = None if quick_key is None or cache is None else cache.find_quickly(quick_key)
        if known is not None:
            best.note(group, known.time_s)
            ledger.settle(number, known, is_cached=True)
            continue
        equal = missing.get(quick_key or number)
        numbers = (number,) if equal is None else (*equal.numbers, number)
        missing[quick_key or number] = PricingJob(
            numbers=numbers,
            program=program if equal is None else equal.program,
            group=group if equal is None else equal.group,
            quick_key=quick_key,
        )
    return list(missing.values())
