"""Prices by the target's own compiler, which runs without the target (design decision 7).

    program   lowered here, on a mesh without devices
    text      compiled in processes beside this one, and kept on disk
    price     the schedule walked on the cluster's figures (`walk_schedule`), and kept on disk too

The fusions, rewrites and overlaps are the compiler's own; only the seconds of each operation are modelled. A program
that does not fit a chip's memory fails, and says by how much.
"""

import datetime
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import jax
from jax.sharding import AbstractMesh, Mesh

from jaxquard import _jax_compat
from jaxquard.cluster import Cluster, cluster_text, load_cluster
from jaxquard.errors import HloError, PricingError
from jaxquard.hlo import list_schedule, parse_module
from jaxquard.pricing.batch_pricer import LoweringPricer
from jaxquard.pricing.cache import PriceCache
from jaxquard.pricing.compile.partitioner_warnings import count_rematerialized
from jaxquard.pricing.host_cores import num_cores
from jaxquard.pricing.outcomes import failure_of
from jaxquard.pricing.price import Failure, FailureReason, Price, Provenance
from jaxquard.pricing.pricing_call import PricingCall
from jaxquard.pricing.program.fingerprint import combine_keys
from jaxquard.pricing.program.lower_program import lower_for_platform, lowered_key, lowering_settings
from jaxquard.pricing.program.sharded_program import ShardedProgram, abstract_mesh
from jaxquard.pricing.target.cluster_costs import ClusterCosts
from jaxquard.pricing.target.compiled_program import CompiledFolder, CompiledProgram, CompileRequest
from jaxquard.pricing.target.find_target import CompileTarget, find_target
from jaxquard.pricing.target.walk_schedule import WalkedProgram, walk_schedule
from jaxquard.pricing.workers.serve import Reply
from jaxquard.pricing.workers.worker import PricingProcess, worker_environment
from jaxquard.pricing.workers.worker_pool import WorkerPool

# Counts how programs are walked and priced: a price of an earlier way is not one of the current way.
_PRICING = 3
_log = logging.getLogger(__name__)
# Machine code that nothing runs; the scheduled program is the same.
_QUICK_OPTIONS: dict[str, dict[str, str]] = {"cpu": {"xla_backend_optimization_level": "0"}}


class CompilePricer(LoweringPricer):
    """Prices programs for a cluster that need not be here, by its compiler.

    It keeps its compiler processes for further calls; `close`, or leaving it as a context, ends them.

    Example:
        >>> mesh = jax.sharding.AbstractMesh((8,), ("x",))
        >>> w = jax.ShapeDtypeStruct((64, 64), jnp.float32)
        >>> program = jq.pricing.ShardedProgram(
        ...     name="x @ w",
        ...     jaxpr=jax.make_jaxpr(jnp.matmul)(w, w),
        ...     in_specs=(jax.P("x"), jax.P()),
        ...     out_specs=(jax.P("x"),),
        ... )
        >>> with jq.pricing.CompilePricer("cpu-8", mesh, cache=None) as pricer:
        ...     price = pricer.price(program)
        >>> price.provenance.pricer, price.communication_s
        ('compiled', 0.0)
    """

    def __init__(
        self,
        cluster: Cluster | str,
        mesh: Mesh | AbstractMesh,
        *,
        cache: PriceCache | Literal["default"] | None = "default",
        num_compilers: int | None = None,
        compile_limit_s: float = 1800.0,
        memory_limit_bytes: int | None = None,
        compiler_options: Mapping[str, str] | None = None,
    ) -> None:
        """A pricer for a mesh over the chips of a cluster.

        Args:
            cluster: a preset with its shape, such as h100-8x4 or v5e-4x4, a TOML file or a `Cluster`. Its name says
                which compiler is asked.
            mesh: its axes; devices do not matter, and it may have none.
            cache: where prices and compiled programs are kept: the user's own folder, another, or nowhere.
            num_compilers: how many programs are compiled at a time; None for as many as there are cores.
            compile_limit_s: that a program may take the compiler.
            memory_limit_bytes: what a program may take on each device; None for the memory of the cluster's chips.
            compiler_options: as `jax.jit` takes them.

        Raises:
            ClusterError: if the cluster is unknown, or the mesh does not fit it.
            InfeasibleError: if the compiler is not installed.
        """
        self._cluster = load_cluster(cluster)
        self._mesh = abstract_mesh(mesh)
        self._target = find_target(self._cluster, tuple(self._mesh.shape.values()))
        super().__init__(cache=cache)
        self._compiled = None if self._cache is None else CompiledFolder(self._cache.folder / "compiled")
        self._num_compilers = num_compilers or default_num_compilers(num_cores())
        self._limit_s = compile_limit_s
        self._memory_limit_bytes = memory_limit_bytes or self._cluster.memory.size_bytes
        self._options = {**_QUICK_OPTIONS.get(self._target.platform, {}), **(compiler_options or {})}
        self._processes: WorkerPool | None = None

    def close(self) -> None:
        """Ends the compiler processes; another call starts new ones."""
        if self._processes is not None:
            self._processes.stop()
        self._processes = None

    @property
    def mesh(self) -> AbstractMesh:
        """The mesh that it prices for."""
        return self._mesh

    @property
    def cluster(self) -> Cluster:
        """The cluster that it prices for."""
        return self._cluster

    @property
    def capacity_bytes(self) -> int:
        """The memory of each chip."""
        return self._memory_limit_bytes

    @property
    def target(self) -> CompileTarget:
        """The compiler that it asks, and what it compiles for."""
        return self._target

    @property
    def compile_s(self) -> float:
        """The seconds of the processor that its compilers took so far; what was on disk takes none."""
        return self._meter.time_breakdown.compile_work_s

    def walk(self, program: ShardedProgram) -> tuple[WalkedProgram, CompiledProgram]:
        """Returns the program as it would run on one chip, with its timeline and collectives, and as compiled.

        It need not fit the chip's memory.

        Raises:
            PricingError: if it does not compile.
        """
        (found,) = self.walk_all([program])
        if isinstance(found, Failure):
            raise PricingError(f"{found}. Take another sharding, or a larger mesh.")
        return found

    def walk_all(self, programs: Sequence[ShardedProgram]) -> Iterator[tuple[WalkedProgram, CompiledProgram] | Failure]:
        """Yields the same of many, in their order, while the others compile; a failure for one that does not."""
        for program, compiling in [(program, self._try_begin(program)) for program in programs]:
            if isinstance(compiling, Failure):
                yield compiling
                continue
            try:
                compiled = self._wait(compiling)
            except Exception as error:  # The compiler refuses this one; the others may.
                yield failure_of(program.name, FailureReason.NO_COMPILATION, error)
                continue
            try:
                yield self._walk(compiled), compiled
            except HloError as error:
                yield failure_of(program.name, FailureReason.NO_RUN, error)

    def provenance_key(self) -> str:
        """Returns a key of all that decides a price beside the program: compiler, target, figures, settings."""
        return combine_keys("compiled", self._environment(), str(self._memory_limit_bytes))

    def is_lasting(self, failure: Failure) -> bool:
        """Returns true for a program that does not fit the target's memory, which is not that of this machine."""
        return failure.reason is FailureReason.OUT_OF_MEMORY

    def _lower(self, program: ShardedProgram) -> tuple[Any, str]:
        lowered = lower_for_platform(program, mesh=self._mesh, platform=self._target.platform)
        return lowered, lowered_key(lowered)

    def _backend(self, call: PricingCall) -> None:
        """Begins to compile all, and prices one after the other as they come."""
        begun = [(job, self._begin(job.program, job.lowered, job.text_key, end_s=call.end_s)) for job in call.jobs()]
        for job, compiling in begun:
            try:
                with self._meter.during("compiling_s"):
                    compiled = self._wait(compiling)
            except Exception as error:  # The compiler refuses this candidate, or is late.
                call.fail(job, FailureReason.NO_COMPILATION, error)
                continue
            try:
                call.settle(job, self._price(job.program.name, compiled))
            except HloError as error:
                call.fail(job, FailureReason.NO_RUN, error)

    def _try_begin(self, program: ShardedProgram) -> "Failure | _Compiling":
        try:
            lowered, text_key = self._lower(program)
        except Exception as error:
            return failure_of(program.name, FailureReason.NO_LOWERING, error)
        return self._begin(program, lowered, text_key)

    def _begin(self, program: ShardedProgram, lowered: Any, text_key: str, *, end_s: float = math.inf) -> "_Compiling":
        """Finds a compiled program on disk, or begins to compile it."""
        key = combine_keys(self._compiler_key(), text_key)
        known = None if self._compiled is None else self._compiled.find(key)
        if known is not None:
            return key, known
        request = CompileRequest(
            code=_jax_compat.module_code(lowered),
            target=self._target,
            num_inputs=len(program.in_specs),
            free_outputs=tuple(spec is None for spec in program.out_specs),
            compiler_options=self._options,
        )
        if self._processes is None:
            self._processes = WorkerPool(
                partial(_start_compiler, self._target), num_workers=self._num_compilers, limit_s=self._limit_s
            )
        return key, self._processes.submit(request, end_s=end_s)

    def _wait(self, compiling: "_Compiling") -> CompiledProgram:
        """Waits for a compiled program, which is kept on disk.

        Raises:
            RuntimeError: if the compiler refuses it.
        """
        key, found = compiling
        if isinstance(found, CompiledProgram):
            return found
        answer, log = found.result()
        if answer.error:
            raise RuntimeError(answer.error)
        compiled = replace(answer.value, num_rematerialized=count_rematerialized(log))
        self._meter.add_compile_work(compiled.compile_s)
        if self._compiled is not None:
            self._compiled.store(key, compiled)
        return compiled

    def _walk(self, compiled: CompiledProgram) -> WalkedProgram:
        schedule = list_schedule(parse_module(compiled.text))
        return walk_schedule(schedule, ClusterCosts(self._cluster, chips=compiled.chips))

    def _price(self, name: str, compiled: CompiledProgram) -> Price:
        walked = self._walk(compiled)
        if compiled.num_rematerialized:
            _log.info("%s: the partitioner gathers %d values whole", name, compiled.num_rematerialized)
        return Price(
            time_s=walked.time_s,
            compute_s=walked.compute_s,
            communication_s=walked.communication_s,
            peak_bytes=compiled.peak_bytes,
            spread=None,
            provenance=self._provenance(),
            num_rematerialized=compiled.num_rematerialized,
        )

    def _check(self, name: str, price: Price) -> Price | Failure:
        """Returns a price; one that needs too much memory is a failure."""
        limit = self._memory_limit_bytes
        if price.peak_bytes <= limit:
            return price
        message = (
            f"it takes {price.peak_bytes / 1e9:.2f} GB on each device of {self._cluster.name}, which has "
            f"{limit / 1e9:.2f}: {(price.peak_bytes - limit) / 1e9:.2f} GB too much"
        )
        return Failure(name=name, reason=FailureReason.OUT_OF_MEMORY, message=message)

    def _provenance(self) -> Provenance:
        has_cycles = self._target.platform == "tpu"
        seconds = "seconds of copies and collectives" if has_cycles else "seconds of all operations"
        return Provenance(
            pricer="compiled",
            jax_version=jax.__version__,
            platform=self._target.platform,
            device_kind=self._target.device_kind,
            num_devices=self._target.num_devices,
            date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            num_runs=0,
            modelled=f"{seconds}, from the figures of {self._cluster.name}; program and memory are the compiler's",
        )

    def _compiler_key(self) -> str:
        """Returns the key of everything beside the program that decides the compiled text."""
        flags = sorted(os.environ.get("XLA_FLAGS", "").split())
        target = self._target
        parts = (
            target.compiler_version,
            target.platform,
            target.topology,
            target.config,
            tuple(self._mesh.shape.items()),
            flags,
            os.environ.get("LIBTPU_INIT_ARGS", ""),
            sorted(self._options.items()),
        )
        return combine_keys(repr(parts))

    def _environment(self) -> str:
        """Returns the key of everything beside the program that decides a price."""
        return combine_keys(repr((_PRICING, self._compiler_key(), cluster_text(self._cluster), lowering_settings())))


# The key of a compiled program on disk, and the program or what comes of compiling it.
_Compiling = tuple[str, "CompiledProgram | Future[tuple[Reply, bytes]]"]


def _start_compiler(target: CompileTarget) -> PricingProcess:
    """Starts a process with the compiler of a target."""
    return PricingProcess(
        "jaxquard.pricing.target.target_worker",
        (target.platform, str(target.num_devices)),
        environment={**worker_environment(os.environ), **target.environment},
        name="the compiler's process",
    )


def default_num_compilers(num_cores: int) -> int:
    """Returns as many compilers as cores, but no more than the memory has room for: one takes about 2 GB."""
    try:
        memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return num_cores
    return max(1, min(num_cores, memory_bytes // (2 * 2**30)))
