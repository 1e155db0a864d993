"""Prices by measurement: each program is compiled as a real SPMD program and run on the mesh (section 4.2 of CFP).

Programs are taken in batches: a batch is compiled, then run in rounds (`run_rounds`), then its prices are kept on disk,
so that an interrupted search goes on where it was. Where compilers leave the devices alone, the next batch is compiled
meanwhile. A program that does not compile, fit or run fails by name.
"""

import math
import time
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from jax.sharding import Mesh

from jaxquard.pricing.batch_pricer import LoweringPricer
from jaxquard.pricing.cache import PriceCache
from jaxquard.pricing.compile.compilers import Compiled, CompileHere, Compilers, choose_compilers
from jaxquard.pricing.host_cores import num_cores
from jaxquard.pricing.measure.machine.environment import environment_key
from jaxquard.pricing.measure.measurement import Measurement
from jaxquard.pricing.measure.runs.reference_program import ReferenceProgram
from jaxquard.pricing.measure.runs.run_blocks import LoopBudget
from jaxquard.pricing.measure.runs.run_rounds import RunBudget
from jaxquard.pricing.measure.runs.watched_run import WatchedRun
from jaxquard.pricing.price import Failure, OnProgress, Price
from jaxquard.pricing.pricing_call import PricingCall
from jaxquard.pricing.program.fingerprint import combine_keys
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


class MeasuredPricer(LoweringPricer):
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
        super().__init__(cache=cache)
        assert num_warmups >= 0
        assert num_runs >= 1
        assert num_profiled_runs >= 0
        self._num_profiled_runs = num_profiled_runs
        self._mesh = mesh = automatic_mesh(mesh)
        self._budget = RunBudget(
            num_warmups=num_warmups, num_runs=num_runs, max_runs=max_runs, slow_factor=slow_factor, limit_s=limit_s
        )
        num_compilers = min(num_cores() if num_compilers is None else num_compilers, _MOST_TOGETHER)
        self._compilers = choose_compilers(mesh, num_compilers=num_compilers, limit_s=compile_limit_s)
        # They hold what they have compiled, so once there are some, even a few programs go to them.
        self._has_compilers = False
        self._reference = ReferenceProgram()
        self._compiled: dict[str, Compiled] = {}
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

    def provenance_key(self) -> str:
        """Returns a key of all that decides a price beside the program: devices, settings, runs."""
        return combine_keys("measured", self._environment())

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
        measure = partial(self._measure, budget=budget, round_size=len(programs), are_compared=True)
        return self._call(
            programs,
            groups,
            measure,
            environment=self._environment(budget, compares=True),
            on_progress=on_progress,
            end_s=end_s,
            is_one_moment=True,
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
        budget, loops = replace(self._budget, num_warmups=0), LoopBudget(limit_s=self._budget.limit_s, end_s=end_s)
        measure = partial(
            self._measure,
            budget=budget,
            round_size=len(programs),
            loops=loops,
            compile_end_s=min(time.monotonic() + budget_s, end_s),
        )
        return self._call(
            programs,
            None,
            measure,
            environment=self._environment(budget, loop=f"{loops.num_blocks} blocks of {loops.num_steps}"),
            on_progress=on_progress,
            end_s=end_s,
            is_one_moment=True,
        )

    def _lower(self, program: ShardedProgram) -> tuple[Any, str]:
        lowered = lower_program(program, mesh=self._mesh)
        return lowered, lowered_key(lowered)

    def _backend(self, call: PricingCall) -> None:
        self._measure(call, budget=self._budget, round_size=self._round_size)

    def _measure(
        self,
        call: PricingCall,
        *,
        budget: RunBudget,
        round_size: int,
        loops: LoopBudget | None = None,
        are_compared: bool = False,
        compile_end_s: float | None = None,
    ) -> None:
        """Measures the jobs of a call.

        Args:
            compile_end_s: when nothing is compiled any more; by default the end of the call.
        """
        # Only a process can be ended while it compiles.
        self._has_compilers |= call.num_missing >= _FEWEST_FOR_COMPILERS or (
            call.num_missing > 0 and math.isfinite(call.end_s)
        )
        watch = WatchedRun()
        measurement = Measurement(
            mesh=self._mesh,
            call=call,
            budget=replace(budget, end_s=call.end_s),
            compilers=self._compilers if self._has_compilers else CompileHere(),
            num_profiled_runs=self._num_profiled_runs,
            round_size=round_size,
            memory_limit_bytes=self._memory_limit_bytes,
            are_compared=are_compared,
            takes_medians=self._takes_medians,
            reference=self._reference,
            watch=watch,
            loops=loops,
            compiled=self._compiled,
        )
        # Loops are compared, so all of them are compiled before one runs.
        batch_size = max(self._batch_size, round_size)
        try:
            end_s = call.end_s if compile_end_s is None else compile_end_s
            measurement.measure(batch_size=batch_size, compile_end_s=end_s)
        finally:
            watch.end(wait_s=1.0)

    def _environment(self, budget: RunBudget | None = None, **measured: Any) -> str:
        """Returns the key of everything beside the program that decides a price."""
        budget = budget or self._budget
        return environment_key(
            self._mesh,
            num_warmups=budget.num_warmups,
            num_runs=budget.num_runs,
            max_runs=budget.max_runs,
            takes_medians=self._takes_medians,
            num_profiled_runs=self._num_profiled_runs,
            **measured,
        )
