"""Prices from one GPU that stands in for those of a cluster (design decision 8).

    program         lowered here, on a mesh without devices
    computation     measured: compiled for all GPUs and run on one, collectives mocked (`mock_process`)
    communication   modelled: the collectives of the compiled text on the cluster's links, less what hides them
                    (`combine_times`)
    memory          as the compiler says

Programs come in batches: a batch is compiled, then one program at a time runs; so nothing disturbs a run, and prices
are kept as they come.
"""

import datetime
import functools
import math
import os
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import filterfalse, islice
from pathlib import Path
from typing import Literal, Protocol

import jax
from jax.sharding import AbstractMesh, Mesh

from jaxquard.cluster import Cluster, cluster_text, load_cluster
from jaxquard.errors import HloError, PricingError
from jaxquard.pricing.batch_pricer import LoweringPricer
from jaxquard.pricing.cache import PriceCache
from jaxquard.pricing.end_of_time import OutOfTimeError, StalledError, check_time
from jaxquard.pricing.host_cores import num_cores
from jaxquard.pricing.measure.runs.run_rounds import spread_of
from jaxquard.pricing.mock_gpu.combine_times import combine_times
from jaxquard.pricing.mock_gpu.mock_process import MockProcess
from jaxquard.pricing.mock_gpu.program_request import CompiledRequest, ProgramRequest, lower_request
from jaxquard.pricing.mock_gpu.time_blocks import BlockBudget
from jaxquard.pricing.price import Failure, FailureReason, OnProgress, Price, Provenance
from jaxquard.pricing.pricing_call import PricingCall, PricingJob
from jaxquard.pricing.program.fingerprint import combine_keys
from jaxquard.pricing.program.lower_program import lowering_settings
from jaxquard.pricing.program.sharded_program import ShardedProgram, abstract_mesh
from jaxquard.pricing.target.cluster_costs import ClusterCosts
from jaxquard.pricing.workers.serve import Reply
from jaxquard.pricing.workers.worker import WorkerEndedError

_MOST_COMPILERS = 16
# Programs that are compiled before any of them runs: few at first, so that there are prices when the time is over.
_FIRST_BATCH, _BATCH = 6, 24
# Counts how programs are timed: a price of an earlier way is not one of the current way.
_PRICING = 2
_USUAL, _COMPARED = BlockBudget(), BlockBudget(num_warmups=3, num_blocks=8, max_blocks=24)


class MockDevices(Protocol):
    """Compiles and runs programs; `MockProcess` does, and tests have others."""

    @property
    def device_kind(self) -> str: ...

    def compile(self, requests: Mapping[int, ProgramRequest], *, end_s: float) -> Iterator[tuple[int, Reply]]: ...

    def run(self, number: int, budget: BlockBudget, *, end_s: float) -> Reply: ...

    def forget(self, number: int) -> None: ...

    def free_bytes(self) -> int | None: ...

    def stop(self) -> None: ...


class MockGpuPricer(LoweringPricer):
    """Prices programs for a cluster of GPUs on one of them: computation measured, communication modelled.

    The GPU is in a process of its own, which starts when it is first needed; `close`, or leaving the pricer as a
    context, ends it. The user's process needs no GPU, and no devices of the mesh.

    Example:
        >>> mesh = jax.sharding.AbstractMesh((8,), ("x",))
        >>> with jq.pricing.MockGpuPricer("h200-8", mesh) as pricer:  # the GPU is asked for at the first price
        ...     print(pricer.mesh.size, pricer.cluster.name)
        8 h200-8
    """

    def __init__(
        self,
        cluster: Cluster | str,
        mesh: Mesh | AbstractMesh,
        *,
        cache: PriceCache | Literal["default"] | None = "default",
        num_compilers: int | None = None,
        slow_factor: float = 2.5,
        limit_s: float = 1800.0,
        memory_limit_bytes: int | None = None,
        devices: MockDevices | None = None,
        platform: str = "cuda",
    ) -> None:
        """A pricer for a mesh over the chips of a cluster.

        Args:
            cluster: a preset with its shape, such as h200-8, a TOML file or a `Cluster`; its links price collectives.
            mesh: its axes; devices do not matter, and it may have none.
            cache: where prices are kept: the user's own folder, another, or nowhere.
            num_compilers: how many programs are compiled at a time, 16 at most; None for as many as there are cores.
            slow_factor: a program that takes so many times as long as the best of its group runs in one block only.
            limit_s: seconds that one program may take to compile, or to run.
            memory_limit_bytes: what a program may take on each device; None for what is free on the GPU.
            devices: what compiles and runs; by default a process with a GPU.
            platform: that programs are lowered for.

        Raises:
            ClusterError: if the cluster, or the chip that its name begins with, is unknown.
            PricingError: if the mesh has more devices than the cluster.
        """
        self._cluster = load_cluster(cluster)
        ClusterCosts(self._cluster)  # Refuses chips that it does not know, before anything starts.
        self._mesh = abstract_mesh(mesh)
        num_chips = self._cluster.num_chips
        if self._mesh.size > num_chips:
            raise PricingError(
                f"the mesh has {self._mesh.size} devices, but {self._cluster.name} has {num_chips} chips. Take a "
                "smaller mesh, or a larger cluster."
            )
        super().__init__(cache=cache)
        self._slow_factor = slow_factor
        self._memory_limit_bytes = memory_limit_bytes
        self._platform = platform
        num_compilers = min(num_compilers or num_cores(), _MOST_COMPILERS)
        self._devices: MockDevices = devices or MockProcess(
            platform=platform, num_devices=self._mesh.size, num_compilers=num_compilers, limit_s=limit_s
        )

    def close(self) -> None:
        """Ends the process with the GPU; another call starts a new one."""
        self._devices.stop()

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
        return self._memory_limit_bytes or self._cluster.memory.size_bytes

    def provenance_key(self) -> str:
        """Returns a key of all that decides a price beside the program: the GPU, figures, settings, runs."""
        return combine_keys("mock-gpu", self._environment())

    def compare(
        self,
        programs: Sequence[ShardedProgram],
        *,
        groups: Sequence[Hashable] | None = None,
        on_progress: OnProgress | None = None,
        end_s: float = math.inf,
    ) -> list[Price | Failure]:
        """Prices close candidates with twice as many blocks of runs; see `Pricer`."""
        return self._call(
            programs,
            groups,
            partial(self._price_batches, budget=_COMPARED),
            environment=self._environment(_COMPARED),
            on_progress=on_progress,
            end_s=end_s,
        )

    def _lower(self, program: ShardedProgram) -> tuple[ProgramRequest, str]:
        request, text = lower_request(program, mesh=self._mesh, platform=self._platform)
        return request, combine_keys(text)

    def _backend(self, call: PricingCall) -> None:
        self._price_batches(call, budget=_USUAL)

    def _price_batches(self, call: PricingCall, *, budget: BlockBudget) -> None:
        jobs, size = call.jobs(), _FIRST_BATCH
        while batch := list(islice(jobs, size)):
            self._price_batch(batch, call, budget)
            size = min(_BATCH, 2 * size)

    def _price_batch(self, jobs: Sequence[PricingJob], call: PricingCall, budget: BlockBudget) -> None:
        """Compiles a batch, then runs one after the other; what ends the process is tried again alone."""
        try:
            check_time(call.end_s)
            compiled = self._compile(jobs, call)
            for number, job in enumerate(jobs):
                self._run(job, number, compiled[number], budget, call)
        except OutOfTimeError as error:
            for job in filterfalse(call.is_settled, jobs):
                call.fail(job, FailureReason.NO_TIME, error)
        except (WorkerEndedError, StalledError) as error:
            if len(jobs) == 1:
                call.fail(jobs[0], FailureReason.NO_RUN, error)
            else:
                for job in filterfalse(call.is_settled, jobs):
                    self._price_batch([job], call, budget)

    def _compile(self, jobs: Sequence[PricingJob], call: PricingCall) -> dict[int, Reply]:
        compiled: dict[int, Reply] = {}
        call.report(f"compiling {len(jobs)} programs")
        with self._meter.during("compiling_s"):
            for number, found in self._devices.compile(dict(enumerate(job.lowered for job in jobs)), end_s=call.end_s):
                compiled[number] = found
                self._meter.add_compile_work(found.work_s)
                call.report(f"compiling {len(compiled)} of {len(jobs)}")
        return compiled

    def _run(self, job: PricingJob, number: int, compiled: Reply, budget: BlockBudget, call: PricingCall) -> None:
        if compiled.error:
            call.fail(job, FailureReason.NO_COMPILATION, RuntimeError(compiled.error))
            return
        available, needed = self._memory_limit_bytes or self._devices.free_bytes(), compiled.value.peak_bytes
        if available is not None and needed > available:
            self._devices.forget(number)
            call.settle(job, _too_large(job.program.name, needed_bytes=needed, available_bytes=available))
            return
        with self._meter.during("running_s"):
            slow_s = self._slow_factor * call.best[job.group]
            run = self._devices.run(number, replace(budget, slow_s=slow_s), end_s=call.end_s)
        if run.error:
            call.fail(job, FailureReason.NO_RUN, RuntimeError(run.error))
            return
        try:
            call.settle(job, self._price(compiled.value, run.value, budget))
        except HloError as error:
            call.fail(job, FailureReason.NO_RUN, error)

    def _price(self, compiled: CompiledRequest, times_s: Sequence[float], budget: BlockBudget) -> Price:
        walked = combine_times(compiled.text, compute_s=min(times_s), cluster=self._cluster)
        return Price(
            time_s=min(times_s) + walked.communication_s,
            compute_s=min(times_s),
            communication_s=walked.communication_s,
            peak_bytes=compiled.peak_bytes,
            spread=spread_of(times_s),
            provenance=Provenance(
                pricer="mock-gpu",
                jax_version=jax.__version__,
                platform=self._platform,
                device_kind=self._devices.device_kind,
                num_devices=self._mesh.size,
                date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                num_runs=len(times_s),
                was_stopped_early=len(times_s) < budget.num_blocks,
                modelled=f"communication_s, from the links of {self._cluster.name}; compute_s is measured on one "
                "device, peak_bytes is the compiler's",
            ),
        )

    def _environment(self, budget: BlockBudget = _USUAL) -> str:
        """Returns the key of everything beside the program that decides a price."""
        parts = (
            _PRICING,
            jax.__version__,
            self._platform,
            gpu_model() or self._devices.device_kind,
            tuple(self._mesh.shape.items()),
            cluster_text(self._cluster),
            repr(budget),
            lowering_settings(),
            sorted(os.environ.get("XLA_FLAGS", "").split()),
        )
        return combine_keys(repr(parts))


def _too_large(name: str, *, needed_bytes: int, available_bytes: int) -> Failure:
    message = (
        f"it takes {needed_bytes / 1e9:.2f} GB on each device, and the one that runs it has "
        f"{available_bytes / 1e9:.2f} GB free: {(needed_bytes - available_bytes) / 1e9:.2f} GB too much"
    )
    return Failure(name=name, reason=FailureReason.OUT_OF_MEMORY, message=message)


@functools.cache
def gpu_model() -> str | None:
    """Returns the name of the first GPU as the driver gives it, which starts nothing; None if there is none."""
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        for line in file.read_text().splitlines():
            if line.startswith("Model:"):
                return line.partition(":")[2].strip()
    return None
