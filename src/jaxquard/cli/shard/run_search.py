"""Runs the search for a command: with a sentence when it is interrupted."""

from contextlib import AbstractContextManager
from typing import Literal

from jax.sharding import AbstractMesh, Mesh

from jaxquard.cli.interrupt import ends_with
from jaxquard.cli.shard.find_step import NamedStep
from jaxquard.cluster import Cluster
from jaxquard.intraop.plan.search_sharding import search_sharding
from jaxquard.intraop.plan.sharding_plan import ShardingPlan
from jaxquard.pricing import PriceCache, Pricer


def run_search(
    step: NamedStep,
    *,
    mesh: Mesh | AbstractMesh,
    memory_limit_bytes: int | None,
    every_combination: bool,
    cluster: Cluster | None = None,
    loop_budget_s: float = 300.0,
    time_budget_s: float | Literal["default"] | None = "default",
    cache: PriceCache | None,
    pricer: Pricer | None = None,
) -> ShardingPlan:
    """Searches, with progress."""
    with interruptible(cache):
        return search_sharding(
            step.train_step,
            step.args,
            mesh=mesh,
            memory_limit_bytes=memory_limit_bytes,
            every_combination=every_combination,
            cluster=cluster,
            loop_budget_s=loop_budget_s,
            time_budget_s=time_budget_s,
            cache=cache,
            pricer=pricer,
        )


def interruptible(cache: PriceCache | None) -> AbstractContextManager[None]:
    """Ends the command on Ctrl-C with a sentence that says where its prices are."""
    if cache is None:
        return ends_with("Nothing is kept (--no-cache).")
    return ends_with(f"What was measured is kept in {cache.folder}, and the same command goes on from there.")
