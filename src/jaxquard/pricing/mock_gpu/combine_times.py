"""The time of a program from the measured time of its computation and the modelled time of its collectives.

A run with mocked collectives shows how long all computation takes together, and not which collective it hides. So the
program's schedule is walked (`walk_schedule`): collectives take the time of the cluster's links, and each operation of
the chip its share of the measured time, in proportion to its modelled one. What lies between the start of a collective
and its end hides it; in a loop, in every iteration.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from jaxquard.cluster import Cluster
from jaxquard.hlo import CollectiveWork, ScheduledOperation, list_schedule, parse_module
from jaxquard.pricing.target.cluster_costs import ClusterCosts
from jaxquard.pricing.target.walk_schedule import OperationCosts, WalkedProgram, walk_schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledCosts:
    """The costs of a cluster, with the computation faster or slower by a factor."""

    costs: OperationCosts
    factor: float

    def compute_s(self, operation: ScheduledOperation) -> float:
        return self.factor * self.costs.compute_s(operation)

    def memory_s(self, size_bytes: float) -> float:
        return self.factor * self.costs.memory_s(size_bytes)

    def collective_s(self, work: CollectiveWork) -> float:
        return self.costs.collective_s(work)

    def links(self, work: CollectiveWork) -> frozenset[Hashable]:
        return self.costs.links(work)


def combine_times(text: str, *, compute_s: float, cluster: Cluster) -> WalkedProgram:
    """Returns the walk of a compiled program whose computation takes `compute_s` in all.

    Raises:
        HloError: if the compiled text cannot be read; it quotes the line.
    """
    operations = list_schedule(parse_module(text))
    costs = ClusterCosts(cluster)
    modelled = walk_schedule(operations, costs)
    factor = compute_s / modelled.compute_s if modelled.compute_s > 0 else 1.0
    return walk_schedule(operations, ScaledCosts(costs=costs, factor=factor))
