"""Cells priced for a cluster that is not here: its compiler compiles all programs, and their schedules are walked.

Nothing runs. The search takes its prices from `CompilePricer`, and a whole step takes the time of its scheduled program
on the cluster's figures; communication is what that schedule does not hide.
"""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from jaxquard.cluster import Cluster, cluster_text
from jaxquard.evaluate.cfp.cells.cell import CellSpec, PlanRun
from jaxquard.evaluate.cfp.cells.cell_step import cell_axes
from jaxquard.evaluate.cfp.run.backend import OnPart, PricingWork
from jaxquard.evaluate.cfp.run.measured_backend import describe_machine
from jaxquard.pricing import CompilePricer, Failure, PriceCache, ShardedProgram
from jaxquard.pricing.communication.collectives import read_collectives
from jaxquard.pricing.program.fingerprint import Fingerprints
from jaxquard.pricing.target.chips import GpuChip, find_chip
from jaxquard.pricing.target.find_target import find_target

# Without a chip to tune on, XLA takes fixed tiles for the products that it generates with Triton, and for some shapes
# on an A100 finds none. All plans take the library's products instead, as most large ones do after tuning.
_GPU_OPTIONS = {"xla_gpu_enable_triton_gemm": "False"}


class CompiledBackend:
    """Prices cells for a cluster by its compiler.

    Args:
        cache: where prices and compiled programs are kept, so that an interrupted cell compiles little again.
        num_compilers: how many programs are compiled at a time; None for as many as there are cores.

    Raises:
        ClusterError: if no compiler is known for the cluster's chips.
    """

    def __init__(self, cluster: Cluster, *, cache: PriceCache | None, num_compilers: int | None = None) -> None:
        self._cluster, self._cache, self._num_compilers = cluster, cache, num_compilers
        self._chip = find_chip(cluster.name)

    @property
    def cluster_name(self) -> str:
        """The cluster."""
        return self._cluster.name

    def machine(self, spec: CellSpec) -> str:
        """Names the chips, the compiler with its versions, and the figures that seconds come from."""
        target = find_target(self._cluster, spec.mesh)
        figures = hashlib.sha256(cluster_text(self._cluster).encode()).hexdigest()[:8]
        capability = ""
        if isinstance(self._chip, GpuChip):
            capability = " for compute capability " + ".".join(map(str, self._chip.capability))
        return (
            f"{target.num_devices} chips of {self._cluster.name}, compiled{capability} by {target.compiler_version}; "
            f"seconds by its figures ({figures})"
        )

    def depth_machine(self, spec: CellSpec) -> str:
        """Describes this machine, on which analysis and search run."""
        return describe_machine(Mesh(np.array(jax.devices()[:1]), ("devices",)))

    @contextlib.contextmanager
    def open(self, spec: CellSpec) -> Iterator["CompiledSession"]:
        """Starts compilers when they are needed; they end with the context."""
        axes = cell_axes(spec)
        mesh = AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))
        pricer = CompilePricer(
            self._cluster,
            mesh,
            cache=self._cache,
            num_compilers=self._num_compilers,
            compiler_options=_GPU_OPTIONS if isinstance(self._chip, GpuChip) else None,
        )
        with pricer:
            yield CompiledSession(pricer=pricer)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledSession:
    """The work on one cell: programs and whole steps are compiled, and nothing runs."""

    pricer: CompilePricer

    @property
    def capacity_bytes(self) -> int:
        """The memory of each chip."""
        return self.pricer.capacity_bytes

    def pricing_work(self) -> PricingWork:
        """Returns the seconds of the compilers so far."""
        return PricingWork(compiled_s=self.pricer.compile_s)

    def whole_runs(self) -> "CompiledRuns":
        """Returns an empty collection; what the search has compiled is on disk already."""
        return CompiledRuns(self.pricer)


@dataclass(frozen=True, slots=True, kw_only=True)
class _WalkedStep:
    """A whole step as its schedule has it."""

    time_s: float
    communication_s: float
    peak_bytes: int
    sent_bytes: float | None


class CompiledRuns:
    """Whole steps that a cluster's compiler has scheduled."""

    def __init__(self, pricer: CompilePricer) -> None:
        self._pricer = pricer
        self._fingerprints = Fingerprints()
        self._keys: dict[str, str] = {}
        self._steps: dict[str, _WalkedStep | Failure] = {}

    def compile(self, programs: Mapping[str, ShardedProgram], *, on_part: OnPart) -> None:
        """Compiles what is new, as many at a time as there are compilers, and walks each schedule."""
        new: dict[str, ShardedProgram] = {}
        for name, program in programs.items():
            key = self._keys[name] = self._fingerprints.key(program) or name
            if key not in self._steps:
                new.setdefault(key, replace(program, name=name))
        on_part("compiling whole steps", 0, len(new), "")
        for done, (key, found) in enumerate(zip(new, self._pricer.walk_all(list(new.values())), strict=True)):
            if isinstance(found, Failure):
                self._steps[key] = found
            else:
                walked, compiled = found
                self._steps[key] = _WalkedStep(
                    time_s=walked.time_s,
                    communication_s=walked.communication_s,
                    peak_bytes=compiled.peak_bytes,
                    sent_bytes=_sent_bytes(compiled.text),
                )
            on_part("compiling whole steps", done + 1, len(new), new[key].name)

    def run(
        self, runs: Sequence[PlanRun], *, chosen: str | None, limit_bytes: int | None, on_part: OnPart
    ) -> list[PlanRun]:
        """Returns the plans with what their schedules say; all of them, since nothing runs."""
        return [_priced_run(run, self._steps[self._keys[run.name]]) for run in runs]


def _priced_run(run: PlanRun, step: _WalkedStep | Failure) -> PlanRun:
    if isinstance(step, Failure):
        return replace(run, failure=str(step))
    return replace(
        run,
        priced_s=step.time_s,
        error=0.0,
        compute_s=step.time_s - step.communication_s,
        communication_s=step.communication_s,
        compiled_bytes=step.sent_bytes,
        peak_bytes=step.peak_bytes,
    )


def _sent_bytes(text: str) -> float | None:
    """Returns the bytes that a step's collectives send; None if one stands in a loop, where it may run many times."""
    found = read_collectives(text)
    return None if any(one.is_in_loop for one in found) else sum(one.sent_bytes for one in found)
