"""A plan as data, from a configuration, the stages that were assigned, and the prices behind them."""

import itertools
from collections.abc import Iterator

from jaxquard.intraop.blocks.two_dimensional import ROWS_2D
from jaxquard.intraop.segments.block_names import BlockNames
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.planner.prices.step_costs import StepCosts
from jaxquard.planner.record.plan import Plan, StagePlan
from jaxquard.planner.search.list_shapes import count_devices
from jaxquard.planner.search.step_pricing import StepPricing
from jaxquard.planner.stages.configurations.configuration_search import PlanFinalist
from jaxquard.planner.tables.mesh_prices import MeshPrices


def describe_plan(
    pricing: StepPricing,
    found: PlanFinalist,
    *,
    prices: MeshPrices | None = None,
    costs: StepCosts | None = None,
    memory_limit_bytes: int | None,
) -> Plan:
    """Returns the plan of a configuration with its stages, alone: without fingerprint, baselines, alternatives and log.

    Args:
        prices: by which it was found; by default those of its mesh and microbatches.
        costs: by which it was found; by default all that were priced.
    """
    shape, played, axes = found.configuration, found.played, found.configuration.mesh
    prices = pricing.find(axes, shape.num_microbatches) if prices is None else prices
    assert prices is not None
    if costs is None:
        costs = prices.costs(storage=Storage(shape.storage), recompute=shape.recompute)
    num_devices = shape.num_actors * count_devices(shape)
    peak = pricing.cluster.compute.peak_flops_per_s * num_devices
    chosen = costs.assignment(found.assignment.strategies)
    facts = prices.facts
    return Plan(
        model=pricing.problem.name,
        fingerprint=None,
        cluster=pricing.cluster.name,
        num_devices=num_devices,
        num_actors=shape.num_actors,
        axes=axes,
        schedule=shape.schedule,
        num_microbatches=shape.num_microbatches,
        microbatch_size=shape.microbatch_size,
        global_batch=shape.num_microbatches * shape.microbatch_size,
        loss_reduction=pricing.problem.loss_reduction,
        recompute=shape.recompute,
        storage=shape.storage,
        segments=tuple(map(len, facts.blocks)),
        stages=tuple(_stages(prices, costs, found)),
        # Configurations were compared by estimates, and some choices stood for others.
        is_proven=False,
        products={str(number): facts.products[number] for number, names in chosen.items() if ROWS_2D in names},
        time_s=played.time_s,
        times=played.times,
        memory=played.memory,
        memory_limit_bytes=memory_limit_bytes,
        mfu=pricing.flops / (played.time_s * peak) if peak else None,
        flops=pricing.flops,
        provenance=facts.provenance,
    )


def _stages(prices: MeshPrices, costs: StepCosts, found: PlanFinalist) -> Iterator[StagePlan]:
    facts, played = prices.facts, found.played
    chosen = costs.assignment(found.assignment.strategies)
    bounds = [0, *found.assignment.stops]
    for stage, ((start, stop), totals) in enumerate(zip(itertools.pairwise(bounds), played.stages, strict=True)):
        first, last = facts.blocks[start][0], facts.blocks[stop - 1][-1]
        blocks = range(first, last + 1)
        cost = totals.cost()
        yield StagePlan(
            name=stage_name([facts.names[block] for block in blocks], stage),
            actor=played.actor_of[stage],
            blocks=(first, last + 1),
            strategies=tuple(tuple(chosen[block]) for block in blocks),
            lines=tuple(facts.names[block].line for block in blocks),
            parameters=tuple(facts.names[block].all_paths for block in blocks),
            forward_s=cost.forward_s,
            backward_s=cost.backward_s,
            communication_s=totals.communication_s,
            memory=played.stage_memory(stage),
            provenance=facts.provenance,
        )


def stage_name(blocks: list[BlockNames], stage: int) -> str:
    """Returns a name of a stage: the first and the last of its parameters, up to where they differ."""
    paths = [path.removeprefix("params.") for names in blocks for path in names.all_paths]
    tops = list(dict.fromkeys(_top(path) for path in paths))
    if not tops:
        return f"stage {stage}"
    return tops[0] if len(tops) == 1 else f"{tops[0]} to {tops[-1]}"


def _top(path: str) -> str:
    """Returns the beginning of a path, up to the first number: `layers.3` of `layers.3.mlp.up`."""
    keys = path.split(".")
    number = next((place for place, key in enumerate(keys) if key.isdecimal()), None)
    return ".".join(keys[:1] if number is None else keys[: number + 1])
