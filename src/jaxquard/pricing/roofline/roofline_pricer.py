"""Prices programs in closed form, by their jaxprs and shardings: milliseconds a program, and no compiler.

    products       by their local shapes (`Times`)
    all else       by the bytes that fused groups read and write
    collectives    that follow from the shardings, over the mesh axes, one after the other and after the kernels
    memory         by liveness

The compiler fuses, merges and overlaps more than this does: times are for ranking strategies and for a first pass of a
search, and come out too long rather than too short where communication can hide.
"""

import datetime
import math
from collections.abc import Hashable, Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh

from jaxquard.cluster import Cluster, levels_of, load_cluster, times_of
from jaxquard.pricing.batch_pricer import BatchPricer
from jaxquard.pricing.price import Failure, OnProgress, Price, Progress, Provenance
from jaxquard.pricing.program.lower_program import program_donations
from jaxquard.pricing.program.sharded_program import ShardedProgram, abstract_mesh
from jaxquard.pricing.roofline.fuse import FusedJaxprs
from jaxquard.pricing.roofline.kernel_costs import KernelCosts
from jaxquard.pricing.roofline.merge_sums import reassociate_sums, time_collectives
from jaxquard.pricing.roofline.mesh_times import MeshTimes
from jaxquard.pricing.roofline.partition import Partitioner
from jaxquard.pricing.roofline.prepare import PreparedJaxprs
from jaxquard.pricing.roofline.program_cost import (
    ProgramCost,
    ShardingWalk,
    gathered_bytes,
    peak_live_bytes,
)
from jaxquard.pricing.roofline.value_dims import Dims, dims_of_spec

_MOST_SPECS = 65536


class RooflinePricer(BatchPricer):
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
        '37 us of computation, 215 us of communication'
    """

    def __init__(
        self, cluster: Cluster | str, mesh: Mesh | AbstractMesh, *, like: "RooflinePricer | None" = None
    ) -> None:
        """A pricer for a mesh over the innermost chips of a cluster.

        Args:
            like: a pricer for another mesh of the same cluster, with which it shares what it reads from jaxprs.

        Raises:
            ClusterError: if the cluster is unknown.
        """
        self._cluster = load_cluster(cluster)
        self._mesh = abstract_mesh(mesh)
        self._names = tuple(self._mesh.axis_names)
        self._sizes = tuple(self._mesh.shape[name] for name in self._names)
        shared = like if like is not None and like.cluster == self._cluster else None
        self._times = times_of(self._cluster)
        self._prepared = PreparedJaxprs() if shared is None else shared._prepared
        self._fused = FusedJaxprs() if shared is None else shared._fused
        self._mesh_times = MeshTimes(self._cluster, self._sizes)
        self._known_dims: dict[int, tuple[Any, Dims]] = {}
        self._partitioner = Partitioner(self._sizes, bytes_per_flop=_bytes_per_flop(self._cluster))

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
        end_s: float = math.inf,
    ) -> list[Price | Failure]:
        """Returns the prices of many programs, in their order; none fails, as closed forms take milliseconds."""
        found: list[Price | Failure] = []
        for number, program in enumerate(programs):
            found.append(self.price(program))
            if on_progress is not None:
                on_progress(
                    Progress(done=number + 1, total=len(programs), name=program.name, num_cached=0, left_s=None)
                )
        return found

    def cost(self, program: ShardedProgram, *, parts: tuple[Hashable, ...] | None = None) -> ProgramCost:
        """Returns the seconds of each kernel and collective of a program.

        Args:
            parts: for each equation, the program that it really runs in, such as a forward or a backward of its own.
        """
        prepared = self._prepared.find(program.jaxpr)
        walk = ShardingWalk(prepared, self._partitioner, self._sizes)
        walk.walk(
            [self._dims(spec) for spec in program.in_specs],
            [(position, output, self._dims(spec)) for position, output, spec in program.constraints],
            [None if spec is None else self._dims(spec) for spec in program.out_specs],
        )
        # The compiler for CPUs does not reorder sums.
        is_accelerator = self._times.chip.hides_arithmetic
        moved = reassociate_sums(walk.collectives, prepared) if is_accelerator else walk.collectives
        kernels, ends = self._fused.find(prepared, parts)
        costs = KernelCosts(
            prepared,
            names=self._names,
            sizes=self._sizes,
            times=self._times,
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
            peak_bytes=peak_live_bytes(
                prepared, kernels, local, ends=ends, gathered=gathered_bytes(moved), shared_bytes=shared
            ),
        )

    def _dims(self, spec: Any) -> Dims:
        """Returns the dims of a spec; most are the same few objects, which are kept so that no others get their ids."""
        found = self._known_dims.get(id(spec))
        if found is None:
            if len(self._known_dims) >= _MOST_SPECS:
                self._known_dims.clear()
            found = self._known_dims[id(spec)] = spec, dims_of_spec(spec, self._names)
        return found[1]

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


def _bytes_per_flop(cluster: Cluster) -> float:
    """Returns the bytes that the innermost links move while a large product does one FLOP."""
    return levels_of(cluster)[0].bandwidth_bytes_per_s / cluster.compute.effective_flops_per_s
