"""Prices by the target's own compiler, which runs without the target (design decision 7).

    program   lowered here, on a mesh without devices
    text      compiled in processes beside this one, and kept on disk
    price     the schedule walked on the cluster's figures (`walk_schedule`), and kept on disk too

The fusions, rewrites and overlaps are the compiler's own; only the seconds of each operation are modelled. A program
that does not fit a chip's memory fails, and says by how much.
"""

import datetime
import hashlib
import logging
import math
import os
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Literal

import jax
from jax.sharding import AbstractMesh, Mesh

from jaxquard import _jax_compat
from jaxquard.cluster import Cluster, cluster_text, load_cluster
from jaxquard.errors import HloError, PricingError
from jaxquard.hlo import list_schedule, parse_module
from jaxquard.pricing.batch_pricer import BatchPricer
from jaxquard.pricing.cache import PriceCache
from jaxquard.pricing.end_of_time import OutOfTimeError, check_time
from jaxquard.pricing.host_cores import num_cores
from jaxquard.pricing.measure.outcomes import Ledger
from jaxquard.pricing.price import Failure, FailureReason, OnProgress, Price, Provenance
from jaxquard.pricing.program.fingerprint import Fingerprints, combine_keys
from jaxquard.pricing.program.lower_program import lower_for_platform, lowered_key
from jaxquard.pricing.program.sharded_program import ShardedProgram, abstract_mesh
from jaxquard.pricing.target.cluster_costs import ClusterCosts
from jaxquard.pricing.target.compiled_program import CompiledFolder, CompiledProgram, CompileRequest
from jaxquard.pricing.target.find_target import CompileTarget, find_target
from jaxquard.pricing.target.target_processes import TargetProcesses, default_num_compilers
from jaxquard.pricing.target.walk_schedule import WalkedProgram, walk_schedule

# Counts how programs are walked and priced: a price of an earlier way is not one of the current way.
_PRICING = 3
_log = logging.getLogger(__name__)
# Machine code that nothing runs; the scheduled program is the same.
_QUICK_OPTIONS: dict[str, dict[str, str]] = {"cpu": {"xla_backend_optimization_level": "0"}}
# Settings of JAX that change what a jaxpr lowers to.
_SETTINGS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_threefry_partitionable", "jax_default_prng_impl")


class CompilePricer(BatchPricer):
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
        self._cache = PriceCache() if cache == "default" else cache
        self._compiled = None if self._cache is None else CompiledFolder(self._cache.folder / "compiled")
        self._num_compilers = num_compilers or default_num_compilers(num_cores())
        self._limit_s = compile_limit_s
        self._memory_limit_bytes = memory_limit_bytes or self._cluster.memory.size_bytes
        self._options = {**_QUICK_OPTIONS.get(self._target.platform, {}), **(compiler_options or {})}
        self._processes: TargetProcesses | None = None
        self._compile_s = 0.0

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
        return self._compile_s

    def price_all(
        self,
        programs: Sequence[ShardedProgram],
        *,
        groups: Sequence[Hashable] | None = None,
        on_progress: OnProgress | None = None,
        end_s: float = math.inf,
    ) -> list[Price | Failure]:
        """The prices of many, in their order; see `Pricer`."""
        ledger = Ledger([program.name for program in programs], on_progress)
        keys = self._keys(programs)
        missing = self._find_known(programs, keys, ledger)
        try:
            for first, numbers, compiled in self._compile_all(programs, missing, end_s):
                result = compiled if isinstance(compiled, Failure) else self._price(programs[first].name, compiled)
                if isinstance(result, Price):
                    self._keep(keys[first], programs[first].name, result)
                for number in numbers:
                    ledger.settle(number, self._check(programs[number].name, result))
        except BaseException:
            self.close()
            raise
        return ledger.results()

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
        for number, _, compiled in self._compile_all(programs, {str(place): [place] for place in range(len(programs))}):
            if isinstance(compiled, Failure):
                yield compiled
                continue
            walked = self._walk_or_fail(programs[number].name, compiled)
            yield walked if isinstance(walked, Failure) else (walked, compiled)

    def provenance_key(self) -> str:
        """Returns a key of all that decides a price beside the program: compiler, target, figures, settings."""
        return combine_keys("compiled", self._environment(), str(self._memory_limit_bytes))

    def is_lasting(self, failure: Failure) -> bool:
        """Returns true for a program that does not fit the target's memory, which is not that of this machine."""
        return failure.reason is FailureReason.OUT_OF_MEMORY

    def _keys(self, programs: Sequence[ShardedProgram]) -> list[str | None]:
        """Returns the key of each program's price; None for one that has none."""
        fingerprints, environment = Fingerprints(), self._environment()
        found = [fingerprints.key(program) for program in programs]
        return [None if key is None else combine_keys(environment, key) for key in found]

    def _find_known(
        self, programs: Sequence[ShardedProgram], keys: Sequence[str | None], ledger: Ledger
    ) -> dict[str, list[int]]:
        """Settles what has a price on disk; returns the places of the others, those of equal ones together."""
        missing: dict[str, list[int]] = {}
        for number, (program, key) in enumerate(zip(programs, keys, strict=True)):
            known = None if key is None or self._cache is None else self._cache.find_quickly(key)
            if known is None:
                missing.setdefault(key or f"program {number}", []).append(number)
            else:
                ledger.settle(number, self._check(program.name, known), is_cached=True)
        return missing

    def _compile_all(
        self, programs: Sequence[ShardedProgram], missing: Mapping[str, list[int]], end_s: float = math.inf
    ) -> Iterable[tuple[int, list[int], CompiledProgram | Failure]]:
        """Yields the compiled program of each group of equal ones; the others compile meanwhile."""
        waiting: list[tuple[list[int], str, CompiledProgram | Failure | Future[CompiledProgram | str]]] = []
        for numbers in missing.values():
            key, found = self._begin(programs[numbers[0]], end_s)
            waiting.append((numbers, key, found))
        for numbers, key, found in waiting:
            compiled = found
            if isinstance(found, Future):
                answer = _result(found)
                compiled = answer
                if not isinstance(answer, CompiledProgram):
                    compiled = _failure(programs[numbers[0]].name, answer)
                if isinstance(answer, CompiledProgram):
                    self._compile_s += answer.compile_s
                    if self._compiled is not None:
                        self._compiled.store(key, answer)
            assert isinstance(compiled, CompiledProgram | Failure)
            yield numbers[0], numbers, compiled

    def _begin(
        self, program: ShardedProgram, end_s: float
    ) -> tuple[str, "CompiledProgram | Failure | Future[CompiledProgram | str]"]:
        """Lowers a program; finds it on disk, or begins to compile it."""
        try:
            check_time(end_s)
        except OutOfTimeError as error:
            return "", _failure(program.name, error)
        try:
            lowered = lower_for_platform(program, mesh=self._mesh, platform=self._target.platform)
        except Exception as error:
            return "", Failure(name=program.name, reason=FailureReason.NO_LOWERING, message=_first_line(error))
        key = combine_keys(self._compiler_key(), lowered_key(lowered))
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
            self._processes = TargetProcesses(self._target, num_compilers=self._num_compilers, limit_s=self._limit_s)
        (future,) = self._processes.compile([request], end_s=end_s)
        return key, future

    def _walk(self, compiled: CompiledProgram) -> WalkedProgram:
        schedule = list_schedule(parse_module(compiled.text))
        return walk_schedule(schedule, ClusterCosts(self._cluster, chips=compiled.chips))

    def _walk_or_fail(self, name: str, compiled: CompiledProgram) -> WalkedProgram | Failure:
        try:
            return self._walk(compiled)
        except HloError as error:
            return Failure(name=name, reason=FailureReason.NO_RUN, message=f"its compiled text cannot be read: {error}")

    def _price(self, name: str, compiled: CompiledProgram) -> Price | Failure:
        walked = self._walk_or_fail(name, compiled)
        if isinstance(walked, Failure):
            return walked
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

    def _check(self, name: str, result: Price | Failure) -> Price | Failure:
        """Returns a result under a program's own name; a price that needs too much memory is a failure."""
        if isinstance(result, Failure):
            return Failure(name=name, reason=result.reason, message=result.message)
        limit = self._memory_limit_bytes
        if result.peak_bytes <= limit:
            return result
        message = (
            f"it takes {result.peak_bytes / 1e9:.2f} GB on each device of {self._cluster.name}, which has "
            f"{limit / 1e9:.2f}: {(result.peak_bytes - limit) / 1e9:.2f} GB too much"
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

    def _keep(self, key: str | None, name: str, price: Price) -> None:
        if key is not None and self._cache is not None:
            self._cache.store(key, price, name=name)
            self._cache.add_alias(key, key)

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
        return hashlib.sha256(repr(parts).encode()).hexdigest()

    def _environment(self) -> str:
        """Returns the key of everything beside the program that decides a price."""
        settings = [(name, str(getattr(jax.config, name, None))) for name in _SETTINGS]
        parts = (_PRICING, self._compiler_key(), cluster_text(self._cluster), settings)
        return hashlib.sha256(repr(parts).encode()).hexdigest()


def _result(compiling: "Future[CompiledProgram | str]") -> CompiledProgram | str | OutOfTimeError:
    try:
        return compiling.result()
    except OutOfTimeError as error:
        return error


def _failure(name: str, message: str | OutOfTimeError) -> Failure:
    if isinstance(message, OutOfTimeError):
        return Failure(name=name, reason=FailureReason.NO_TIME, message=str(message))
    is_memory = "RESOURCE_EXHAUSTED" in message or "out of memory" in message.lower()
    reason = FailureReason.OUT_OF_MEMORY if is_memory else FailureReason.NO_COMPILATION
    return Failure(name=name, reason=reason, message=_first_line(message))


def _first_line(error: Any) -> str:
    lines = str(error).strip().splitlines()
    return lines[0][:400] if lines else type(error).__name__
