"""A worker process: prices plans in frozen words by the code of `FROZEN_COMMIT`, which PYTHONPATH has.

Reads a JSON list of `{"name": problem, "words": plan}`, and writes a line of JSON for each: the predicted seconds, the
bytes of the fullest device and its limit, or why there is no price. Without words, it searches for a plan of its own,
and writes the seconds that this takes. Uses private names of that code, which stay as they are.

A model by name is priced in closed form and played. A traced loss is analysed and priced on the plan's own mesh with
all strategies, as the last pass of the search does; then the plan's own are picked, and played.
"""

import contextlib
import functools
import itertools
import json
import math
import sys
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.corpus.problems import NamedProblem, TracedProblem, find_problem


def price_plan(name: str, words: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the seconds and bytes of a plan, or the reason that it has none."""
    from jaxquard.errors import JaxquardError

    problem = find_problem(name)
    try:
        if isinstance(problem, NamedProblem):
            return {"name": name, **_price_named(problem, words)}
        return {"name": name, **_price_traced(problem, words)}
    except (JaxquardError, LookupError, TypeError, ValueError) as error:
        return {"name": name, "failure": f"{type(error).__name__}: {error}"}


def time_search(name: str) -> dict[str, Any]:
    """Returns the processor's seconds of the frozen code's own search."""
    import jaxquard
    from jaxquard.errors import JaxquardError
    from jaxquard.planner.named.plan_named import plan_named

    problem = find_problem(name)
    parallelize = jaxquard.parallelize
    arguments = problem.arguments() if isinstance(problem, TracedProblem) else ()
    options = {"pricer": "model", "num_measured": 0, "cache": None, "progress": False}
    start_s = time.process_time()
    with contextlib.suppress(JaxquardError):
        if isinstance(problem, NamedProblem):
            plan_named(problem.model, problem.cluster, global_batch=problem.global_batch, progress=False)
        else:
            parallelize(*arguments, cluster=problem.cluster, name=problem.model, **options)
    return {"name": name, "search_cpu_s": time.process_time() - start_s}


def _price_named(problem: NamedProblem, words: Mapping[str, Any]) -> dict[str, Any]:
    from jaxquard.planner.named import plan_named as named
    from jaxquard.planner.named.play_strategy import play_strategy
    from jaxquard.planner.named.search import PricedStrategy
    from jaxquard.pricing.model.parallelism import Parallelism

    transformer = named._find_transformer(problem.model, None, 1)
    step = named._model_step(transformer, problem.cluster, problem.global_batch, None, "JaxPP", "bf16", None)
    parallelism = Parallelism(**words)
    if parallelism.num_devices != step.num_devices or parallelism.global_batch != problem.global_batch:
        raise ValueError(f"the plan is for {parallelism.num_devices} chips and {parallelism.global_batch} sequences")
    price = step.price(parallelism)
    played = play_strategy(step, PricedStrategy(parallelism=parallelism, price=price))
    return {"time_s": played.time_s, "peak_bytes": price.peak_bytes, "limit_bytes": step.limit_bytes}


def _price_traced(problem: TracedProblem, words: Mapping[str, Any]) -> dict[str, Any]:
    from jaxquard.intraop.shardings.layouts import Storage
    from jaxquard.planner.record.plan import Recompute
    from jaxquard.planner.stages.play_assignment import play_assignment
    from jaxquard.planner.stages.segment_costs import PipelineShape, StageAssignment
    from jaxquard.simulate.actor_link import link_actors

    plan_problem, target, pricing = _open(problem)
    axes, count = dict(words["axes"]), words["microbatches"]
    num_devices = math.prod(axes.values())
    if num_devices * words["actors"] != target.num_devices or count not in plan_problem.counts:
        raise ValueError(f"the plan is for {num_devices * words['actors']} chips and {count} microbatches")
    kind = {"storage": Storage(words["storage"]), "recompute": Recompute(words["recompute"])}
    chosen = dict(enumerate(_strategies(words)))
    found = _find_places(pricing.find(axes, count), words, chosen, kind)
    if found is None:  # Its stages end inside of segments.
        found = _find_places(_price_apart(problem, words), words, chosen, kind)
    if found is None:  # The search would not have priced one of its strategies.
        found = _find_places(_price_apart(problem, words, chosen), words, chosen, kind)
    if found is None:
        raise ValueError("the frozen code has no price of one of its shardings")
    costs, stops, places = found
    played = play_assignment(
        costs.segments,
        PipelineShape(
            num_actors=words["actors"],
            num_stages=len(stops),
            schedule=words["schedule"],
            num_microbatches=count,
        ),
        StageAssignment(stops=stops, strategies=places, time_s=0.0, peak_bytes=()),
        links=link_actors(target.cluster, num_actors=words["actors"], chips_apart=num_devices),
    )
    return {"time_s": played.time_s, "peak_bytes": max(played.peak_bytes), "limit_bytes": target.memory_bytes}


@functools.lru_cache(maxsize=1)
def _open(problem: TracedProblem) -> tuple[Any, Any, Any]:
    """Returns the problem as the search has it, its target and its prices."""
    from jaxquard.planner.search.problem import loss_problem
    from jaxquard.planner.search.step_pricing import StepPricing
    from jaxquard.planner.search.targets import find_plan_target
    from jaxquard.planner.wishes import parse_wishes

    loss, optimizer, args = problem.arguments()
    opened, _ = loss_problem(loss, optimizer, args, name=problem.model)
    target = find_plan_target(cluster=problem.cluster, devices=None, runtime="in_process")
    return opened, target, StepPricing(opened, target.cluster, wishes=parse_wishes())


def _strategies(words: Mapping[str, Any]) -> list[tuple[str, ...]]:
    return [tuple(names.split("/")) for names, times in words["strategies"] for _ in range(times)]


def _find_places(
    prices: Any, words: Mapping[str, Any], chosen: Mapping[int, tuple[str, ...]], kind: Mapping[str, Any]
) -> tuple[Any, tuple[int, ...], tuple[int, ...]] | None:
    """Returns the costs, the segment after the last of each stage, and the place of each segment's strategy."""
    if prices is None:
        raise ValueError(f"the frozen code cannot shard the step over {dict(words['axes'])}")
    _check_blocks(prices.facts.names, words)
    costs = prices.costs(**kind)
    ends = {blocks[-1] + 1: number + 1 for number, blocks in enumerate(costs.blocks)}
    places = costs.places(chosen)
    if places is None or not ends.keys() >= set(words["stage_stops"]):
        return None
    return costs, tuple(ends[stop] for stop in words["stage_stops"]), places


def _check_blocks(names: Mapping[int, Any], words: Mapping[str, Any]) -> None:
    """Raises a ValueError if the frozen code finds other blocks in the step than the plan is for."""
    found = [next(iter(names[block].all_paths), "") for block in sorted(names)]
    if found != words["parameters"] or len(found) != len(_strategies(words)):
        different = next(
            (pair for pair in itertools.zip_longest(found, words["parameters"]) if pair[0] != pair[1]), ("", "")
        )
        raise ValueError(
            f"the frozen code finds {len(found)} blocks and the plan has {len(_strategies(words))}; the first that "
            f"differ have the parameters {different[0]!r} and {different[1]!r}"
        )


def _price_apart(
    problem: TracedProblem, words: Mapping[str, Any], chosen: Mapping[int, tuple[str, ...]] | None = None
) -> Any:
    """Returns prices in segments that end where the plan's stages do.

    Args:
        chosen: the sharding of each block, which alone is priced. The bytes between stages are then in its own layout,
            and else in that of the fastest; plans of a pipeline differ by 1 % for it.
    """
    from jaxquard.intraop.segments.tune_products import tune_products
    from jaxquard.planner.search.live_pricing import LivePricing
    from jaxquard.planner.step.stage_boundaries import analyse_microbatch
    from jaxquard.planner.tables.mesh_prices import PricesKey
    from jaxquard.planner.wishes import parse_wishes

    opened, target, _ = _open(problem)

    class StagedPricing(LivePricing):
        def _analyse(self, axes: dict[str, int], num_microbatches: int) -> Any:
            usual = super()._analyse(axes, num_microbatches)
            stops = {*itertools.accumulate(len(segment.blocks) for segment in usual.segments), *words["stage_stops"]}
            tune = functools.partial(tune_products, axes=axes, cluster=self.cluster, batch_axis=None)
            return analyse_microbatch(
                opened.trace(num_microbatches),
                axes=axes,
                analyser=self._analysers[num_microbatches],
                plan_products=tune,
                lengths=[stop - start for start, stop in itertools.pairwise([0, *sorted(stops)])],
            )

    pricing = StagedPricing(opened, target.cluster, wishes=parse_wishes())
    axes, count = dict(words["axes"]), words["microbatches"]
    segments = pricing._analyse(axes, count).segments if chosen else ()
    only = {segment.blocks: [tuple(chosen[block] for block in segment.blocks)] for segment in segments if chosen}
    return pricing.price(PricesKey(axes=tuple(axes.items()), num_microbatches=count), only=only)


def main() -> None:
    import jax

    jax.config.update("jax_platforms", "cpu")
    for asked in json.load(sys.stdin):
        is_price = "words" in asked
        verb = "priced" if is_price else "searched"
        print(f"{asked['name']}: {verb} by the frozen code", file=sys.stderr, flush=True)
        found = price_plan(asked["name"], asked["words"]) if is_price else time_search(asked["name"])
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
