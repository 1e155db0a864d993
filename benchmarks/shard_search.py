"""The sharding that the search finds, beside baselines and beside every other strategy, measured whole.

Four models, three batch sizes each, on 8 virtual CPU devices. Every cell is one search; then the chosen plan, the
baselines and all strategies of a layer (the same for all layers, embedding and head as chosen) are run whole: once
coarsely, then the best ten, the plan and the baselines in turns. Ratios are of the least of interleaved runs.
"""

import argparse
import dataclasses
import json
import math
import os
import time
from pathlib import Path
from typing import Any

NUM_DEVICES = 8
BATCH_SIZES = (8, 32, 128)
MODELS = ("gpt", "bert", "llama", "moe")


def small_model(name: str, *, num_layers: int, model_dim: int) -> tuple[Any, Any]:
    """A zoo model with the dims of the benchmark, dropout on."""
    import jax.numpy as jnp

    from jaxquard.models import zoo

    found = zoo.find_model(f"{name}-tiny")
    changes: dict[str, Any] = {
        "num_layers": num_layers,
        "model_dim": model_dim,
        "sequence_length": 32,
        "vocab_size": 512,
        "dtype": jnp.float32,
        "dropout_rate": 0.1,
    }
    if name == "llama":
        changes["mlp_dim"] = 8 * model_dim // 3 // 64 * 64
    if name == "moe":
        changes["mlp_factor"] = 4
    return found.module, dataclasses.replace(found.config, **changes)


def run_cell(name: str, batch_size: int, *, num_layers: int, model_dim: int, all_strategies: bool) -> dict[str, Any]:
    """Searches, then measures whole steps."""
    import jax

    from jaxquard.intraop.analyse import analyse_step
    from jaxquard.intraop.baselines import Baseline, baselines
    from jaxquard.intraop.choose_finalists import choose_finalists
    from jaxquard.intraop.predict import predict_all
    from jaxquard.intraop.price_segments import make_chain, price_segments
    from jaxquard.intraop.search_chain import search_chain
    from jaxquard.intraop.sharding_plan import make_mesh
    from jaxquard.intraop.traced_step import trace_step
    from jaxquard.intraop.write_program import write_step
    from jaxquard.models import zoo
    from jaxquard.pricing import MeasuredPricer, Price

    module, config = small_model(name, num_layers=num_layers, model_dim=model_dim)
    made = zoo.training_step(module, config, batch_size=batch_size, optimizer="adam")
    state = jax.eval_shape(made.init_state, jax.random.key(0))
    mesh = make_mesh({"x": NUM_DEVICES})
    start_s = time.perf_counter()
    analysis = analyse_step(trace_step(made.train_step, (state, made.batch)), axes={"x": NUM_DEVICES})
    analysed_s = time.perf_counter() - start_s
    with MeasuredPricer(mesh, cache=None) as pricer:
        prices = price_segments(analysis, pricer=pricer)
        chain = make_chain(analysis, prices)
        best = search_chain(chain, memory_limit_bytes=None).best
        finalists = choose_finalists(analysis, prices, chain, best, memory_limit_bytes=None, count=8)
        known = list(baselines(analysis).values())
        predictions = predict_all(analysis, prices, [*finalists, *known], pricer=pricer)
        searched_s = time.perf_counter() - start_s
        everyone = [*finalists, *known]
        winner = everyone[min(range(len(everyone)), key=lambda place: predictions[place].time_s)]
        chosen = dict(winner.assignment)
        plans = [Baseline(name="chosen", assignment=chosen, storage=winner.storage), *known]
        others = _layer_strategies(analysis, prices, chosen) if all_strategies else []
        predictions = predict_all(analysis, prices, [*plans, *others], pricer=pricer)
        programs = {
            plan.name: write_step(analysis, plan.assignment, storage=plan.storage) for plan in [*plans, *others]
        }
        coarse = {}
        if others:
            with MeasuredPricer(mesh, cache=None, num_warmups=1, num_runs=3) as quick:
                found = quick.price_all([programs[other.name] for other in others])
            coarse = {
                other.name: price.time_s for other, price in zip(others, found, strict=True) if isinstance(price, Price)
            }
        last = [plan.name for plan in plans] + sorted(coarse, key=coarse.__getitem__)[:10]
        with MeasuredPricer(mesh, cache=None, num_runs=30, round_size=len(last), slow_factor=50.0) as fair:
            fine = dict(zip(last, fair.price_all([programs[name] for name in last]), strict=True))
    return {
        "model": name,
        "batch_size": batch_size,
        "num_programs": prices.num_programs,
        "analysed_s": analysed_s,
        "searched_s": searched_s,
        "chosen": {block: list(names) for block, names in chosen.items()},
        "predicted_s": {found.name: found.time_s for found in predictions},
        "sum_s": {found.name: found.sum_s for found in predictions},
        "predicted_bytes": {found.name: found.size_bytes for found in predictions},
        "coarse_s": coarse,
        "measured_s": {key: price.time_s for key, price in fine.items() if isinstance(price, Price)},
        "measured_bytes": {key: price.peak_bytes for key, price in fine.items() if isinstance(price, Price)},
        "spread": {key: price.spread for key, price in fine.items() if isinstance(price, Price)},
        "failed": [str(price) for price in fine.values() if not isinstance(price, Price)],
    }


def _layer_strategies(analysis: Any, prices: Any, chosen: dict[int, tuple[str, ...]]) -> list[Any]:
    """Every strategy of the kind of segment with the most strategies, in all its places."""
    from jaxquard.intraop.baselines import Baseline

    kind = max(prices.kinds.values(), key=lambda found: len(found.strategies)).segment.kind
    plans = []
    for strategy in prices.kinds[kind].strategies:
        assignment = dict(chosen)
        for segment in analysis.segments:
            if segment.kind == kind:
                assignment.update(zip(segment.blocks, strategy, strict=True))
        plans.append(Baseline(name=" ".join("/".join(names) for names in strategy), assignment=assignment))
    return plans


def summary(cell: dict[str, Any]) -> str:
    """One line."""
    measured, predicted = cell["measured_s"], cell["predicted_s"]
    ours = measured["chosen"]
    parts = [f"{cell['model']} batch {cell['batch_size']}: {ours * 1e3:.1f} ms"]
    parts.append(f"predicted {predicted['chosen'] / ours:.2f}")
    parts += [f"{name} {measured[name] / ours:.2f}" for name in measured if name in _BASELINES]
    rest = [time_s for name, time_s in measured.items() if name not in _BASELINES and name != "chosen"]
    if rest:
        parts.append(f"best of all {min(rest) / ours:.3f}")
    for title, guesses in (("error", predicted), ("error of the sum", cell["sum_s"])):
        both = [(guesses[name], measured[name]) for name in guesses if name in measured]
        finite = [abs(guess - time_s) / time_s for guess, time_s in both if math.isfinite(guess)]
        parts.append(f"{title} {sum(finite) / len(finite):.1%}")
    parts.append(f"searched in {cell['searched_s']:.0f} s, {cell['num_programs']} programs")
    return "; ".join(parts)


_BASELINES = ("data parallel", "zero 1", "zero 3", "megatron", "megatron, sequence parallel", "volume")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--batch-sizes", nargs="*", type=int, default=list(BATCH_SIZES))
    parser.add_argument("--num-layers", type=int, default=2)
    parser.add_argument("--model-dim", type=int, default=256)
    parser.add_argument("--all-strategies", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args([] if arguments is None else arguments)
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={NUM_DEVICES}"
    os.environ["JAX_PLATFORMS"] = "cpu"
    cells = []
    for name in options.models:
        for batch_size in options.batch_sizes:
            cell = run_cell(
                name,
                batch_size,
                num_layers=options.num_layers,
                model_dim=options.model_dim,
                all_strategies=options.all_strategies,
            )
            cells.append(cell)
            print(summary(cell), flush=True)
            if options.out is not None:
                options.out.write_text(json.dumps(cells, indent=1))


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
