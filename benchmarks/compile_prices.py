"""Prices from compilers: how well they rank strategies, and what they cost.

    python -m benchmarks.compile_prices rank [--out FILE]      on a quiet machine, 8 virtual CPU devices: the strategies
                                                               of a GPT layer by CPU HLO and a calibrated CPU cluster,
                                                               beside their measured times
    python -m benchmarks.compile_prices rank --read FILE       compares again what was measured
    python -m benchmarks.compile_prices compile [CLUSTER]      the strategies of a GPT-6.7B layer compiled for 8 H100s,
                                                               and then priced from the cache

The ranking calibrates first, as `jaxquard cluster calibrate` does. It wants a Spearman correlation of at least 0.9, and
a pick within 5 % of the fastest measured strategy. Compiling wants at most 20 minutes on 2 cores.
"""

import argparse
import dataclasses
import gzip
import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import spearmanr

from jaxquard.cluster import cluster_text, load_cluster, parse_cluster
from jaxquard.intraop.segments.analysis import analyse_step
from jaxquard.intraop.segments.strategies import segment_strategies
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.intraop.step.traced_step import trace_step
from jaxquard.models import zoo
from jaxquard.pricing import CompilePricer, Failure, MeasuredPricer, Price, PriceCache, Progress, ShardedProgram

# With three layers, one recurs between the embedding and the head.
_NUM_DEVICES, _BATCH_SIZE, _NUM_LAYERS = 8, 8, 3
_RANKED = {"model_dim": 256, "num_heads": 8, "sequence_length": 128, "vocab_size": 1024}


def main(arguments: list[str] | None = None) -> None:
    """Ranks, or compiles."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("rank", "compile"), nargs="?", default="rank")
    parser.add_argument("cluster", nargs="?", default="h100-8", help="to compile for")
    parser.add_argument("--out", type=Path, help="keep what was measured in this file")
    parser.add_argument("--read", type=Path, help="compare what was measured before")
    parser.add_argument("--cluster-file", type=Path, help="a calibrated CPU cluster; by default calibrates now")
    parser.add_argument("--few", type=int, help="a random part of the strategies")
    options = parser.parse_args(arguments)
    if options.what == "compile":
        compile_strategies(options.cluster, few=options.few)
    elif options.read is not None:
        compare(json.loads(options.read.read_text()))
    else:
        measured = rank(few=options.few, cluster_file=options.cluster_file, out=options.out)
        if options.out is not None:
            options.out.write_text(json.dumps(measured, indent=1))
        compare(measured)


def layer_programs(config: Any, *, few: int | None) -> list[ShardedProgram]:
    """Returns the programs of all strategies of a layer of GPT on 8 devices."""
    made = zoo.training_step(zoo.MODELS["gpt"], config, batch_size=_BATCH_SIZE, only_shapes=True)
    state = jax.eval_shape(lambda: made.init_state(jax.random.key(0)))
    analysis = analyse_step(
        trace_step(made.train_step, (state, made.batch)), axes={"devices": _NUM_DEVICES}, every_combination=True
    )
    strategies = {
        segment: segment_strategies(segment, graph=analysis.graph, blocks=analysis.blocks, axes=analysis.axes)
        for segment in analysis.segments
    }
    programs, layer = StepPrograms(analysis), max(strategies, key=lambda segment: len(strategies[segment]))
    found = [
        programs.write_segments([layer], dict(zip(layer.blocks, strategy, strict=True)))
        for strategy in strategies[layer]
    ]
    return found if few is None else random.Random(0).sample(found, few)


def _print_progress(progress: Progress) -> None:
    left = "" if progress.left_s is None else f", about {progress.left_s:.0f} s left"
    print(f"  {progress.done} of {progress.total}: {progress.name}{left}", flush=True)


def _ranked_config() -> Any:
    return dataclasses.replace(zoo.find_model("gpt-tiny").config, num_layers=_NUM_LAYERS, dtype=jnp.float32, **_RANKED)


def rank(*, few: int | None, cluster_file: Path | None, out: Path | None) -> dict[str, Any]:
    """Calibrates a cluster, which is left beside the answer, and measures the strategies; returns both."""
    from jaxquard.calibrate import calibrate

    jax.config.update("jax_num_cpu_devices", _NUM_DEVICES)
    programs = layer_programs(_ranked_config(), few=few)
    mesh = jax.make_mesh((_NUM_DEVICES,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))
    start_s = time.perf_counter()
    cluster = calibrate("cpu-8").cluster if cluster_file is None else load_cluster(str(cluster_file))
    print(f"calibrated in {time.perf_counter() - start_s:.0f} s", flush=True)
    if out is not None:
        out.with_suffix(".toml").write_text(cluster_text(cluster))
    start_s = time.perf_counter()
    with MeasuredPricer(mesh, cache=None, slow_factor=100) as pricer:
        prices = pricer.price_all(programs, on_progress=_print_progress)
    print(f"measured {len(programs)} strategies in {time.perf_counter() - start_s:.0f} s", flush=True)
    measured = {
        program.name: price.time_s for program, price in zip(programs, prices, strict=True) if isinstance(price, Price)
    }
    return {"cluster": cluster_text(cluster), "few": few, "measured_s": measured}


def compare(found: dict[str, Any]) -> None:
    """Prices what was measured from CPU HLO, and prints how the two rankings agree."""
    cluster = parse_cluster(found["cluster"])
    mesh = jax.sharding.AbstractMesh((_NUM_DEVICES,), ("devices",))
    measured = found["measured_s"]
    programs = [program for program in layer_programs(_ranked_config(), few=found["few"]) if program.name in measured]
    start_s = time.perf_counter()
    with CompilePricer(cluster, mesh) as pricer:
        prices = pricer.price_all(programs)
    print(f"compiled and priced in {time.perf_counter() - start_s:.0f} s")
    failed = [price for price in prices if isinstance(price, Failure)]
    assert not failed, failed[0]
    modelled = np.array([price.time_s for price in prices if isinstance(price, Price)])
    real = np.array([measured[program.name] for program in programs])
    pick, best = int(np.argmin(modelled)), int(np.argmin(real))
    ratios = modelled / real
    print(f"Spearman {spearmanr(modelled, real).statistic:.3f} over {len(real)} strategies, wanted 0.9")
    print(f"the pick takes {real[pick] / real[best]:.3f} of the fastest measured, wanted at most 1.05")
    print(f"modelled / measured: median {np.median(ratios):.2f}, {ratios.min():.2f} to {ratios.max():.2f}")
    for name, place in (("fastest", best), ("pick", pick), ("most underestimated", int(np.argmin(ratios)))):
        print(f"  {name}: {programs[place].name}: {real[place] * 1e3:.2f} ms, modelled {modelled[place] * 1e3:.2f} ms")


def compile_strategies(cluster: str, *, few: int | None) -> None:
    """Compiles the strategies of a large layer for a cluster, and prices them again from the cache."""
    config = dataclasses.replace(zoo.find_model("gpt:6.7b").config, num_layers=_NUM_LAYERS)
    programs = layer_programs(config, few=few)
    mesh = jax.sharding.AbstractMesh((_NUM_DEVICES,), ("devices",))
    with tempfile.TemporaryDirectory() as folder:
        for what in ("compiled and priced", "priced from the cache"):
            start_s = time.perf_counter()
            with CompilePricer(cluster, mesh, cache=PriceCache(folder)) as pricer:
                prices = pricer.price_all(programs)
            time_s = time.perf_counter() - start_s
            print(f"{len(programs)} strategies for {cluster} {what} in {time_s:.1f} s", flush=True)
        files = list(Path(folder, "compiled").glob("*.json.gz"))
        work_s = sum(json.loads(gzip.decompress(file.read_bytes()))["compile_s"] for file in files)
        print(f"  {work_s / len(files):.1f} s of a processor to compile each of {len(files)}")
    found = [(price, program) for price, program in zip(prices, programs, strict=True) if isinstance(price, Price)]
    for time_s, name in sorted((price.time_s, program.name) for price, program in found)[:3]:
        print(f"  {time_s * 1e3:.2f} ms: {name}")
    for failure in (price for price in prices if isinstance(price, Failure)):
        print(f"  failed: {failure}")


if __name__ == "__main__":
    main()
