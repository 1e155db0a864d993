"""Cells measured on this machine: all plans coarsely; then the best ten, the chosen one and the baselines in turns."""

import contextlib
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
from jax.sharding import Mesh

from jaxquard.evaluate.cfp.cells.cell import CellSpec, PlanRun, Role
from jaxquard.evaluate.cfp.cells.cell_step import cell_axes
from jaxquard.evaluate.cfp.cells.pick import NUM_BY_VOLUME
from jaxquard.evaluate.cfp.run.backend import OnPart, PricingWork
from jaxquard.evaluate.cfp.run.whole_steps import COARSE, COARSE_ROUND, FINE, Timing, WholeSteps
from jaxquard.intraop.plan.sharding_plan import make_device_mesh
from jaxquard.pricing import MeasuredPricer, PriceCache, ShardedProgram
from jaxquard.pricing.measure.machine.environment import device_kind
from jaxquard.pricing.measure.machine.steady_cpu import is_memory_kept

_NUM_FINE = 10


def describe_machine(mesh: Mesh) -> str:
    """`8 x cpu: some processor, 2 cores, JAX 0.10.2, memory kept`: only ratios in a cell compare with others'."""
    kept = ", memory kept" if is_memory_kept() else ""
    return f"{mesh.size} x {device_kind(mesh)}, JAX {jax.__version__}{kept}"


class MeasuredBackend:
    """Measures cells on the devices that are here.

    Args:
        cache: where prices of parts are kept; whole steps are always run.
    """

    cluster_name = None

    def __init__(self, *, cache: PriceCache | None) -> None:
        self._cache = cache

    def machine(self, spec: CellSpec) -> str:
        """Describes the devices and JAX."""
        return describe_machine(make_device_mesh(cell_axes(spec)))

    depth_machine = machine

    @contextlib.contextmanager
    def open(self, spec: CellSpec) -> Iterator["MeasuredSession"]:
        """Starts compilers; they end with the context."""
        mesh = make_device_mesh(cell_axes(spec))
        with MeasuredPricer(mesh, cache=self._cache) as pricer:
            yield MeasuredSession(pricer=pricer, mesh=mesh)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSession:
    """The work on one cell: programs and whole steps run on the mesh."""

    pricer: MeasuredPricer
    mesh: Mesh

    @property
    def capacity_bytes(self) -> None:
        """None: the memory of this machine is far larger than what a cell takes."""
        return None

    def pricing_work(self) -> PricingWork:
        """Returns the seconds of the pricer's work so far."""
        spent = self.pricer.time_breakdown
        return PricingWork(lowered_s=spent.lowering_s, compiled_s=spent.compile_work_s, run_s=spent.running_s)

    def whole_runs(self) -> "MeasuredRuns":
        """Returns an empty collection; what the search has compiled is there already."""
        return MeasuredRuns(WholeSteps(self.mesh, compilers=self.pricer.compilers))


class MeasuredRuns:
    """Whole steps that run on this machine."""

    def __init__(self, steps: WholeSteps) -> None:
        self._steps = steps

    def compile(self, programs: Mapping[str, ShardedProgram], *, on_part: OnPart) -> None:
        """Compiles what is new, as many at a time as there are compilers."""
        self._steps.compile(programs, on_step=partial(on_part, "compiling whole steps"))

    def run(
        self, runs: Sequence[PlanRun], *, chosen: str | None, limit_bytes: int | None, on_part: OnPart
    ) -> list[PlanRun]:
        """Runs compiled plans: all of them a few times, the best, the chosen one and baselines often; some profiled."""
        steps = self._steps
        always = [run.name for run in runs if run.role is Role.BASELINE or run.name == chosen]
        coarse: dict[str, Timing] = {}
        if len(always) < len(runs):
            coarse = steps.time(
                [run.name for run in runs], COARSE, round_size=COARSE_ROUND, on_step=partial(on_part, "all")
            )
        best = self._best(coarse, limit_bytes)
        last = steps.same_as(list(dict.fromkeys([*always, *best])))
        fine = steps.time(last, FINE, round_size=None, on_step=partial(on_part, "the best in turns"))
        strategies = [run for run in runs if run.role is Role.STRATEGY and run.name in coarse]
        by_volume = sorted(strategies, key=lambda run: run.volume_bytes)[:NUM_BY_VOLUME]
        profiled = list(dict.fromkeys([*always, *(run.name for run in by_volume)]))
        shares = steps.shares(profiled, on_step=partial(on_part, "profiling"))
        measured = _measured_runs(runs, steps, coarse, fine)
        measured = [
            replace(run, compiled_bytes=steps[run.name].sent_bytes) if run.name in profiled else run for run in measured
        ]
        return [_with_split(run, shares.get(run.name)) for run in measured]

    def _best(self, coarse: Mapping[str, Timing], limit_bytes: int | None) -> list[str]:
        """Returns the names of the fastest that fit."""
        limit = limit_bytes or float("inf")
        fitting = [
            name
            for name, timing in coarse.items()
            if timing.time_s is not None and (self._steps[name].peak_bytes or 0) <= limit
        ]
        return sorted(fitting, key=lambda name: coarse[name].minimum_s or 0.0)[:_NUM_FINE]


def _measured_runs(
    runs: Sequence[PlanRun], steps: WholeSteps, coarse: Mapping[str, Timing], fine: Mapping[str, Timing]
) -> list[PlanRun]:
    pace = _drift(coarse, fine)
    found = []
    for run in runs:
        few, many = coarse.get(run.name, Timing()), fine.get(run.name, Timing())
        found.append(
            replace(
                run,
                peak_bytes=steps[run.name].peak_bytes,
                coarse_s=None if few.minimum_s is None else pace * few.minimum_s,
                measured_s=many.time_s,
                minimum_s=many.minimum_s,
                spread=many.spread,
                error=many.error,
                failure=(fine.get(run.name) or coarse[run.name]).failure,
            )
        )
    return found


def _drift(coarse: Mapping[str, Timing], fine: Mapping[str, Timing]) -> float:
    """Returns how much longer runs took when many were made than when few were, in most plans that have both."""
    pairs = [(coarse[name].minimum_s, timing.time_s) for name, timing in fine.items() if name in coarse]
    ratios = [many_s / few_s for few_s, many_s in pairs if few_s is not None and many_s is not None]
    return statistics.median(ratios) if ratios else 1.0


def _with_split(run: PlanRun, share: float | None) -> PlanRun:
    """The time of a run, parted into computation and the communication that is not hidden behind it."""
    if share is None or run.time_s is None:
        return run
    return replace(run, compute_s=(1 - share) * run.time_s, communication_s=share * run.time_s)
