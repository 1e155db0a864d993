"""The plan that `parallelize` takes, beside the best plan of every number of stages and microbatches, all of them run.

For each number of stages and of microbatches the best shardings by prices run as training loops on 8 virtual CPU
devices that take a steady time (`jq.pricing.make_cpu_steady`), each in a block of its own, all blocks alike; the chosen
plan has the first and the last. With `--pricer measure` prices alone decide, and the plan's time is a prediction: it is
compared with what these blocks take. Otherwise the best plans run in the search; the error of the closed form, which
knows no more of a CPU than its preset, is that of every plan that ran.

The pace of a machine that others use wanders by more than prices err, also within the minute between a price and a
run. So with `--fix` the whole tasks of one plan are priced, without a cache, and its step runs, in turns: each run is
compared with the mean of the prices before and behind it.

    python -m benchmarks.plan_choice [--models mlp gpt llama] [--most 99] [--pricer model]
    python -m benchmarks.plan_choice --fix '{"stages": 1, "microbatches": 1, "mesh": {"data": 8}}'
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxquard as jq
from jaxquard.errors import PlanError
from jaxquard.models import gpt, llama
from jaxquard.planner.record.plan import Plan
from jaxquard.planner.search import find_plan as find_plan_module
from jaxquard.planner.search.describe_plan import describe_plan
from jaxquard.planner.search.find_plan import find_plan
from jaxquard.planner.search.list_shapes import list_shapes
from jaxquard.planner.search.live_pricing import abstract_mesh_of
from jaxquard.planner.search.measure_plans import describe_shape, measure_plans
from jaxquard.planner.search.plan_options import PlanOptions
from jaxquard.planner.search.price_tasks import PlayedPlan, price_tasks
from jaxquard.planner.search.pricers import make_pricers
from jaxquard.planner.search.problem import PlanProblem, loss_problem
from jaxquard.planner.search.step_pricing import StepPricing
from jaxquard.planner.search.targets import PlanTarget, find_plan_target, mesh_maker
from jaxquard.planner.search.two_passes import TwoPassSearch
from jaxquard.planner.wishes import parse_wishes
from jaxquard.simulate.actor_link import link_actors

_NUM_ROWS = 32


def mlp() -> tuple[Callable[..., Any], Any, Any]:
    """Eight residual layers of 256 features."""

    def loss(params: Any, batch: Any) -> Any:
        x = batch["x"]
        for layer in params["layers"]:
            x = x + jnp.tanh(x @ layer["up"]) @ layer["down"]
        return jnp.mean((x - batch["y"]) ** 2)

    width = 256
    layers = [{"up": jax.ShapeDtypeStruct((width, 4 * width), jnp.float32)} for _ in range(8)]
    layers = [{**layer, "down": jax.ShapeDtypeStruct((4 * width, width), jnp.float32)} for layer in layers]
    rows = jax.ShapeDtypeStruct((8 * _NUM_ROWS, width), jnp.float32)
    return loss, {"layers": layers}, {"x": rows, "y": rows}


def language_model(module: Any, config: Any) -> tuple[Callable[..., Any], Any, Any]:
    """A model of the zoo."""
    params = jax.eval_shape(lambda key: module.init(key, config), jax.random.key(0))
    batch = jax.eval_shape(
        lambda key: module.synthetic_batch(key, config, num_microbatches=1, microbatch_size=_NUM_ROWS),
        jax.random.key(0),
    )
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), batch)
    return lambda params, batch: module.loss(params, batch, config), params, batch


MODELS: dict[str, Callable[[], tuple[Callable[..., Any], Any, Any]]] = {
    "mlp": mlp,
    "gpt": lambda: language_model(
        gpt,
        gpt.GptConfig(vocab_size=512, num_layers=4, num_heads=4, model_dim=128, sequence_length=64, dtype=jnp.float32),
    ),
    "llama": lambda: language_model(
        llama,
        llama.LlamaConfig(
            vocab_size=512,
            num_layers=4,
            num_heads=4,
            num_kv_heads=2,
            model_dim=128,
            mlp_dim=384,
            sequence_length=64,
            dtype=jnp.float32,
        ),
    ),
}


def compare(name: str, most: int, pricer: str) -> dict[str, Any]:
    """Plans a model, and runs the plan beside the others."""
    loss, params, batch = MODELS[name]()
    problem, _ = loss_problem(loss, optax.adam(1e-3), (params, batch), name=name)
    target = find_plan_target(cluster=None, devices=8, runtime="in_process")
    make_mesh = mesh_maker(target, {})
    is_predicted = pricer == "measure"
    errors: list[tuple[str, float]] = []
    start_s = time.perf_counter()
    if is_predicted:
        chosen = find_plan(problem, target, PlanOptions(pricer=pricer, num_measured=0))
    else:
        chosen = plan_with_errors(problem, target, PlanOptions(pricer=pricer), make_mesh, errors)
    planned_s = time.perf_counter() - start_s
    print(chosen, flush=True)
    others = [plan for plan in best_plans(problem, target) if plan.time_s < np.inf][:most]
    measured = measure_plans(problem, [chosen, *others, chosen], make_mesh=make_mesh)
    for one in measured:
        print(
            f"  {one.time_s * 1e3:8.2f} ms (spread {one.spread:.0%}): {describe_shape(one.plan)} {one.failure}",
            flush=True,
        )
    ours_s = [measured[0].time_s, measured[-1].time_s]
    best_s = min(one.time_s for one in measured)
    found = {
        "model": name,
        "pricer": pricer,
        "planned_s": round(planned_s, 1),
        "num_others": len(others),
        "num_failed": sum(one.time_s == np.inf for one in measured),
        "measured_ms": [round(1e3 * time_s, 2) for time_s in ours_s],
        "spread": round(measured[0].spread, 2),
        "best_of_all_ms": round(1e3 * best_s, 2),
        "ours_over_best": [round(time_s / best_s, 3) for time_s in ours_s],
        "baselines_over_ours": {one.name: round(one.time_s / chosen.time_s, 2) for one in chosen.baselines},
    }
    if is_predicted:
        return found | {
            "predicted_ms": round(1e3 * chosen.time_s, 2),
            "predicted_over_measured": [round(chosen.time_s / time_s, 3) for time_s in ours_s],
        }
    return found | {
        "predicted_over_measured_of_all_that_ran": [(key, round(value, 2)) for key, value in errors],
        "median_error": round(statistics.median(abs(math.log(value)) for _, value in errors), 3),
    }


def compare_in_turns(name: str, fix: dict[str, Any], turns: int) -> dict[str, Any]:
    """Plans a model with these wishes in closed form, and compares the measured price of its tasks with its runs."""
    loss, params, batch = MODELS[name]()
    problem, _ = loss_problem(loss, optax.adam(1e-3), (params, batch), name=name)
    target = find_plan_target(cluster=None, devices=8, runtime="in_process")
    plan = find_plan(problem, target, PlanOptions(num_measured=0, cache=None, fix=fix))
    ratios = run_in_turns(problem, target, plan, mesh_maker(target, {}), turns)
    return {
        "model": name,
        "plan": describe_shape(plan),
        "in_turns": [round(value, 3) for value in ratios],
        "median": round(statistics.median(ratios), 3),
    }


def plan_with_errors(
    problem: PlanProblem,
    target: PlanTarget,
    options: PlanOptions,
    make_mesh: Callable[[Plan], Any],
    errors: list[tuple[str, float]],
) -> Plan:
    """Returns the plan that is taken, and notes the price over the time taken of all that ran."""
    run = find_plan_module.run_candidates

    def record(*args: Any, **more: Any) -> Any:
        ran, usual = run(*args, **more)
        tried = [one for one in (*usual, *ran) if one.is_measured and not one.failure]
        errors.extend((describe_shape(one.plan), one.price_s / one.time_s) for one in tried)
        return ran, usual

    with mock.patch.object(find_plan_module, "run_candidates", record):
        return find_plan(problem, target, options, make_mesh=make_mesh)


def run_in_turns(
    problem: PlanProblem, target: PlanTarget, chosen: Plan, make_mesh: Callable[[Plan], Any], turns: int
) -> list[float]:
    """Returns, several times, the price of the chosen plan's whole tasks over what its step takes.

    Each run is between two prices, and is compared with their mean.
    """
    before = price_anew(problem, target, chosen)
    ratios = []
    for _ in range(turns):
        (ran,) = measure_plans(problem, [chosen], make_mesh=make_mesh)
        assert not ran.failure, ran.failure
        after = price_anew(problem, target, chosen)
        price_s = statistics.mean((before.time_s, after.time_s))
        print(f"  {price_s * 1e3:8.2f} ms said; {ran.time_s * 1e3:.2f} taken (spread {ran.spread:.0%})", flush=True)
        ratios.append(price_s / ran.time_s)
        before = after
    return ratios


def price_anew(problem: PlanProblem, target: PlanTarget, plan: Plan) -> PlayedPlan:
    """Prices the whole tasks of a plan by measurement, without a cache."""
    axes = tuple(plan.axes.items())
    links = link_actors(target.cluster, num_actors=plan.num_actors, chips_apart=math.prod(plan.axes.values()))
    with make_pricers("measure", target, cache=None, num_runs=30) as make_pricer:
        assert make_pricer is not None
        return price_tasks(problem, plan, make_pricer(abstract_mesh_of(axes)), links=links)


def best_plans(problem: PlanProblem, target: PlanTarget) -> list[Any]:
    """Returns the best plan by prices for each number of stages and microbatches, the fastest first."""
    wishes = parse_wishes(None, None)
    pricing = StepPricing(problem, target.cluster, wishes=wishes)
    max_stages = 1 + sum(boundary.can_begin for boundary in pricing.find_boundaries())
    shapes = list_shapes(problem, target, wishes, max_stages=max_stages, max_microbatch_size=None)
    groups: dict[tuple[int, int], list[Any]] = {}
    for shape in shapes:
        if shape.num_stages == shape.num_actors:
            groups.setdefault((shape.num_stages, shape.num_microbatches), []).append(shape)
    search = TwoPassSearch(pricing=pricing, memory_limit_bytes=target.memory_bytes)
    found = []
    for shapes in groups.values():
        try:
            best = search.run(shapes).best
        except PlanError:
            continue
        if best is not None:
            found.append(describe_plan(pricing, best, memory_limit_bytes=target.memory_bytes))
    return sorted(found, key=lambda plan: plan.time_s)


def main() -> None:
    """Compares all models."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--most", type=int, default=99, help="plans that run beside the chosen one")
    parser.add_argument("--pricer", choices=("model", "measure"), default="model", help="prices by which it is found")
    parser.add_argument("--fix", type=json.loads, help="run only the plan with these wishes, in turns with its price")
    parser.add_argument("--turns", type=int, default=5, help="runs of it")
    options = parser.parse_args()
    assert jq.pricing.make_cpu_steady()
    jax.config.update("jax_num_cpu_devices", 8)
    for name in options.models:
        if options.fix is not None:
            print(json.dumps(compare_in_turns(name, options.fix, options.turns)), flush=True)
        else:
            print(json.dumps(compare(name, options.most, options.pricer)), flush=True)


if __name__ == "__main__":
    main()
