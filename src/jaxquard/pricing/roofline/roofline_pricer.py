"""Prices programs in closed form, by their jaxprs and shardings: milliseconds a program, and no compiler.

    products       by their local shapes (`kernel_times`)
    all else       by the bytes that fused groups read and write
    collectives    that follow from the shardings, over the mesh axes, one after the other and after the kernels
    memory         by liveness

The compiler fuses, merges and overlaps more than this does: times are for ranking strategies and for a first pass of a
search, and come out too long rather than too short where communication can hide.
"""

import datetime
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from jaxquard.cluster import Cluster, load_cluster
from jaxquard.pricing.price import Failure, OnProgress, Price, Progress, Provenance
from jaxquard.pricing.program.lower_program import program_donations
from jaxquard.pricing.program.sharded_program import ShardedProgram, abstract_mesh
from jaxquard.pricing.roofline.fuse import FusedKernel, fuse_equations
from jaxquard.pricing.roofline.kernel_costs import KernelCosts
from jaxquard.pricing.roofline.kernel_times import KernelTimes
from jaxquard.pricing.roofline.merge_sums import reassociate_sums, time_collectives
from jaxquard.pricing.roofline.mesh_times import MeshTimes
from jaxquard.pricing.roofline.partition import Partitioner
from jaxquard.pricing.roofline.prepare import PreparedJaxpr, prepare_equations
from jaxquard.pricing.roofline.program_cost import (
    ProgramCost,
    ShardingWalk,
    gathered_bytes,
    peak_live_bytes,
)
from jaxquard.pricing.roofline.value_dims import Dims, dims_of_spec

# Jaxprs that are kept prepared: the strategies of a segment share a few.
_MOST_PREPARED = 512


class RooflinePricer:
    """Prices programs for a mesh of a cluster from their jaxprs alone.

    Example:
        >>> mesh = jax.sharding.AbstractMesh((8,), ("x",))
        >>> w = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
        >>> program = jq.pricing.ShardedProgram(
        ...     name="x @ w",
        ...     jaxpr=jax.make_jaxpr(jnp.matmul)(w, w),
        ...     in_specs=(jax.P(None, "x"), jax.P("x")),
        ...     out_specs=(jax.P(),),
        ... )
        >>> price = jq.pricing.RooflinePricer("h100-8", mesh).price(program)
        >>> f"{price.compute_s * 1e6:.0f} us of computation, {price.communication_s * 1e6:.0f} us of communication"
        '38 us of computation, 215 us of communication'
    """

    def __init__(self, cluster: Cluster | str, mesh: Mesh | AbstractMesh) -> None:
        """A pricer for a mesh over the innermost chips of a cluster.

        Raises:
            ClusterError: if the cluster is unknown.
        """
        self._cluster = load_cluster(cluster)
        self._mesh = abstract_mesh(mesh)
        self._names = tuple(self._mesh.axis_names)
        self._sizes = tuple(self._mesh.shape[name] for name in self._names)
        self._kernel_times = KernelTimes(self._cluster)
        self._mesh_times = MeshTimes(self._cluster, self._sizes)
        self._prepared: OrderedDict[int, _Prepared] = OrderedDict()

    @property
    def mesh(self) -> AbstractMesh:
        """The mesh that it prices for."""
        return self._mesh

    @property
    def cluster(self) -> Cluster:
        """The cluster that it prices for."""
        return self._cluster

    def price(self, program: ShardedProgram) -> Price:
        """Returns the price of one program."""
        return self.to_price(self.cost(program))

    def to_price(self, cost: ProgramCost) -> Price:
        """Returns the price of a program whose cost is known."""
        return Price(
            time_s=cost.compute_s + cost.communication_s,
            compute_s=cost.compute_s,
            communication_s=cost.communication_s,
            peak_bytes=cost.peak_bytes,
            spread=None,
            provenance=self._provenance(),
        )

    def price_all(
        self,
        programs: Sequence[ShardedProgram],
        *,
        groups: Sequence[Hashable] | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[Price | Failure]:
        """Returns the prices of many programs, in their order; none fails."""
        found: list[Price | Failure] = []
        for number, program in enumerate(programs):
            found.append(self.price(program))
            if on_progress is not None:
                on_progress(
                    Progress(done=number + 1, total=len(programs), name=program.name, num_cached=0, left_s=None)
                )
        return found

    def compare(
        self,
        programs: Sequence[ShardedProgram],
        *,
        groups: Sequence[Hashable] | None = None,
        on_progress: OnProgress | None = None,
    ) -> list[Price | Failure]:
        """Returns the same prices: there is nothing to measure again."""
        return self.price_all(programs, groups=groups, on_progress=on_progress)

    def cost(self, program: ShardedProgram, *, parts: tuple[Hashable, ...] | None = None) -> ProgramCost:
        """Returns the seconds of each kernel and collective of a program.

        Args:
            parts: for each equation, the program that it really runs in, such as a forward or a backward of its own.
        """
        closed: Any = program.jaxpr
        kept = self._prepare(closed)
        prepared = kept.prepared
        walk = ShardingWalk(prepared, kept.partitioner, self._sizes)
        walk.walk(
            [self._dims(spec) for spec in program.in_specs],
            {(position, output): self._dims(spec) for position, output, spec in program.constraints},
            [None if spec is None else self._dims(spec) for spec in program.out_specs],
        )
        moved = reassociate_sums(walk.collectives, prepared) if self._kernel_times.is_accelerator else walk.collectives
        kernels = kept.kernels(parts)
        costs = KernelCosts(
            prepared,
            names=self._names,
            sizes=self._sizes,
            kernel_times=self._kernel_times,
            mesh_times=self._mesh_times,
        )
        local = walk.local_sizes()
        shared = sum(local[prepared.inputs[place]] for place in program_donations(program))
        return ProgramCost(
            prepared=prepared,
            dims=tuple(walk.dims),
            sizes_bytes=tuple(local),
            fused=kernels,
            kernels=tuple(costs.price(kernel, walk.chosen, local) for kernel in kernels),
            collectives=tuple(time_collectives(moved, prepared, self._mesh_times)),
            flops=sum(costs.flops(kernel, walk.chosen) for kernel in kernels),
            peak_bytes=peak_live_bytes(prepared, kernels, local, gathered=gathered_bytes(moved), shared_bytes=shared),
        )

    def _dims(self, spec: Any) -> Dims:
        return dims_of_spec(spec, self._names)

    def _prepare(self, closed: Any) -> "_Prepared":
        key = id(closed)
        if key not in self._prepared:
            self._prepared[key] = _Prepared(closed, self._sizes, self._kernel_times.bytes_per_flop)
            if len(self._prepared) > _MOST_PREPARED:
                self._prepared.popitem(last=False)
        self._prepared.move_to_end(key)
        return self._prepared[key]

    def _provenance(self) -> Provenance:
        return Provenance(
            pricer="model",
            jax_version=jax.__version__,
            platform="none",
            device_kind=self._cluster.name,
            num_devices=self._mesh.size,
            date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            num_runs=0,
            modelled=f"all, on {self._cluster.name}",
        )


class _Prepared:
    """A jaxpr with what was derived from it; it holds the jaxpr, so that no other one gets its id."""

    def __init__(self, closed: Any, sizes: tuple[int, ...], bytes_per_flop: float) -> None:
        self.closed = closed
        self.prepared: PreparedJaxpr = prepare_equations(closed.jaxpr)
        self.partitioner = Partitioner(self.prepared, sizes, bytes_per_flop=bytes_per_flop)
        self._kernels: dict[tuple[Hashable, ...] | None, tuple[FusedKernel, ...]] = {}

    def kernels(self, parts: tuple[Hashable, ...] | None) -> tuple[FusedKernel, ...]:
        if parts not in self._kernels:
            self._kernels[parts] = fuse_equations(self.prepared, parts)
        return self._kernels[parts]
