"""One GPU for eight: the measured computation of a GPT layer's strategies beside the predicted one.

    python -m benchmarks.mock_gpu_prices --out FOLDER [--limit SECONDS]     on a machine with one GPU: measures
    python -m benchmarks.mock_gpu_prices [--read FOLDER]                    anywhere: compares what was measured

Measuring leaves the compiled programs beside their times, so that predictions can be compared again later. The order of
strategies is random, so that a part of them, if time ends, stands for all.
"""

import argparse
import dataclasses
import gzip
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

_MODEL, _NUM_DEVICES, _BATCH_SIZE = "gpt3-6.7b", 8, 8
# Programs that are compiled at a time, and those of the profile.
_BATCH, _NUM_PROFILED = 12, 3
# Strategies of a trial on CPU.
_NUM_TRIED = 3


def main(arguments: list[str] | None = None) -> None:
    """Measures, or compares what was measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="measure, and leave what was measured in this folder")
    parser.add_argument("--read", type=Path, help="what was measured; by default the results that are kept here")
    parser.add_argument("--limit", type=float, default=215.0, help="seconds for all of it")
    parser.add_argument("--platform", default="cuda", help="cpu tries the script itself, on a tiny model")
    parser.add_argument("--first", type=int, default=0, help="the strategy to begin with; those before it come last")
    parser.add_argument("--prices-share", type=float, default=0.6, help="of the time, the part for prices")
    parser.add_argument("--stage", choices=tuple(_STAGES), help="one part of it, in this process")
    options = parser.parse_args(arguments)
    if options.stage is not None:
        _STAGES[options.stage](options.out, options.platform, options.limit, options.first)
    elif options.out is not None:
        share = options.prices_share
        measure(options.out, options.platform, options.limit, first=options.first, prices_share=share)
    else:
        from benchmarks.mock_gpu_report import report

        report(options.read)


def measure(out: Path, platform: str, limit_s: float, *, first: int = 0, prices_share: float = 0.6) -> None:
    """Runs the stages, each in its own process, as each starts JAX in its own way; what one leaves stays.

    Args:
        first: the strategy to begin with; those before it come last.
        prices_share: of the time, the part for the prices.
    """
    out.mkdir(parents=True, exist_ok=True)
    end_s = time.monotonic() + limit_s
    for stage, share in (("pricer", 0.2), ("prices", prices_share), ("profile", 0.8), ("kernels", 0.8)):
        left_s = end_s - time.monotonic()
        if left_s < 10:
            print(f"no time for {stage}", flush=True)
            continue
        command = [sys.executable, "-m", "benchmarks.mock_gpu_prices", "--stage", stage, "--out", str(out)]
        command += ["--platform", platform, "--limit", f"{share * left_s:.0f}", "--first", str(first)]
        start_s = time.monotonic()
        try:
            status = subprocess.run(command, timeout=left_s, env=_environment(stage, platform)).returncode
        except subprocess.TimeoutExpired:
            status = "timeout"
        print(f"== {stage}: status {status}, {time.monotonic() - start_s:.0f} s", flush=True)


def _environment(stage: str, platform: str) -> dict[str, str]:
    from jaxquard.pricing.mock_gpu.mock_process import mock_environment

    if stage in ("pricer", "prices"):
        return {**os.environ, "JAX_PLATFORMS": "cpu"}
    environment = mock_environment(platform, os.environ)
    if stage == "profile":
        # Kernels of a CUDA graph do not say which instruction they are of.
        environment["XLA_FLAGS"] += " --xla_gpu_enable_command_buffer="
    return environment


def layer_programs(platform: str, count: int | None = None) -> dict[str, Any]:
    """Returns the requests of the layer's strategies, or of so many, by name, in random order."""
    from jax.sharding import AbstractMesh, AxisType

    from jaxquard.intraop.segments.analysis import analyse_step
    from jaxquard.intraop.segments.strategies import segment_strategies
    from jaxquard.intraop.shardings.programs import StepPrograms
    from jaxquard.pricing.mock_gpu.program_request import lower_request

    step = layer_step(platform)
    analysis = analyse_step(step, axes={"devices": _NUM_DEVICES})
    programs = StepPrograms(analysis)
    strategies = {
        segment: segment_strategies(
            segment, graph=analysis.graph, blocks=analysis.blocks, axes=analysis.axes, products=analysis.products
        )
        for segment in analysis.segments
    }
    layer = max(strategies, key=lambda segment: len(strategies[segment]))
    mesh = AbstractMesh((_NUM_DEVICES,), ("devices",), axis_types=(AxisType.Auto,))
    found = {}
    chosen = random.Random(0).sample(strategies[layer], len(strategies[layer]))
    for strategy in chosen[: _NUM_TRIED if platform == "cpu" else count]:
        program = programs.write_segments([layer], dict(zip(layer.blocks, strategy, strict=True)))
        found[program.name], _ = lower_request(program, mesh=mesh, platform=platform)
    return found


def layer_step(platform: str) -> Any:
    """Returns the traced step of a GPT with three layers."""
    import jax

    from jaxquard.intraop.step.traced_step import trace_step
    from jaxquard.models.zoo import find_model, training_step

    model = find_model("gpt-tiny" if platform == "cpu" else _MODEL)
    config = dataclasses.replace(model.config, num_layers=3)
    made = training_step(model.module, config, batch_size=_BATCH_SIZE, only_shapes=True)
    return trace_step(made.train_step, (jax.eval_shape(made.init_state, jax.random.key(0)), made.batch))


def _try_pricer(out: Path, platform: str, limit_s: float, _: int) -> None:
    """Prices a few programs as a user does: a product, one that ends in a sum, a reshard, one that does not fit."""
    import jax
    import jax.numpy as jnp
    from jax import P
    from jax.sharding import AbstractMesh

    from jaxquard.pricing import MockGpuPricer, ShardedProgram, reshard_program

    size = 256 if platform == "cpu" else 8192
    square = jax.ShapeDtypeStruct((size, size), jnp.bfloat16)
    closed = jax.make_jaxpr(jnp.matmul)(square, square)
    huge = jax.ShapeDtypeStruct((32 * size, 64 * size), jnp.bfloat16)

    def product(name: str, *specs: Any) -> ShardedProgram:
        return ShardedProgram(name=name, jaxpr=closed, in_specs=specs[:2], out_specs=(specs[2],))

    programs = [
        product("rows", P("x"), P(), P("x")),
        product("contracted", P(None, "x"), P("x"), P()),
        reshard_program("all-gather", [square], [P("x")], [P()]),
        reshard_program("all-to-all", [square], [P("x")], [P(None, "x")]),
        reshard_program("too large", [huge, huge], [P("x"), P()], [P(), P("x")]),
    ]
    with MockGpuPricer("h200-8", AbstractMesh((8,), ("x",)), cache=None, limit_s=limit_s, platform=platform) as pricer:
        results = pricer.price_all(programs, on_progress=lambda progress: print(progress.name, flush=True))
    text = "\n".join(f"{program.name}: {result}" for program, result in zip(programs, results, strict=True))
    (out / "pricer.txt").write_text(text)
    print(text, flush=True)


def _measure_prices(out: Path, platform: str, limit_s: float, first: int) -> None:
    """Times every strategy by the process that the pricer uses."""
    from jaxquard.pricing.mock_gpu.mock_process import MockProcess
    from jaxquard.pricing.mock_gpu.time_blocks import BlockBudget

    end_s = time.monotonic() + limit_s
    requests = layer_programs(platform)
    print(f"{len(requests)} strategies lowered, {end_s - time.monotonic():.0f} s left", flush=True)
    process = MockProcess(
        platform=platform, num_devices=_NUM_DEVICES, num_compilers=min(16, os.cpu_count() or 1), limit_s=limit_s
    )
    names = [*list(requests)[first:], *list(requests)[:first]]
    content = {"device_kind": process.device_kind, "programs": {}}
    batch_s = 0.0
    try:
        for start in range(0, len(names), _BATCH):
            if end_s - time.monotonic() < 0.8 * batch_s:
                break
            begin_s = time.monotonic()
            batch = {number: requests[names[number]] for number in range(start, min(start + _BATCH, len(names)))}
            answers = dict(process.compile(batch))
            compiled_s = time.monotonic() - begin_s
            for number, answer in answers.items():
                run = answer if answer.error else process.run(number, BlockBudget())
                times = {"error": run.error} if run.error else {"times_s": run.value}
                content["programs"][names[number]] = {**_compiled(answer), **times}
            batch_s = time.monotonic() - begin_s
            print(f"{start + len(batch)}: compiled {compiled_s:.0f} s, all {batch_s:.0f} s", flush=True)
            _write(out / "prices.json.gz", content)
    finally:
        process.stop()
    errors = [entry["error"] for entry in content["programs"].values() if "error" in entry]
    print(f"{len(content['programs'])} programs, {len(errors)} errors {errors[:1]}", flush=True)


def _measure_profile(out: Path, platform: str, limit_s: float, _: int) -> None:
    """Leaves the time of every instruction of some strategies, and that of mocked collectives."""
    from jaxquard.pricing.mock_gpu.mock_worker import MockedPrograms, start_mocked_devices
    from jaxquard.pricing.mock_gpu.time_blocks import BlockBudget

    end_s = time.monotonic() + limit_s
    devices = start_mocked_devices(platform, _NUM_DEVICES)
    programs = MockedPrograms(devices, num_compilers=min(16, os.cpu_count() or 1))
    requests = {**layer_programs(platform, _NUM_PROFILED), **_collective_requests(platform)}
    names = list(requests)
    content: dict[str, Any] = {"programs": {}}
    answers = dict(enumerate(programs.compile({number: requests[name] for number, name in enumerate(names)})))
    budget = BlockBudget(num_warmups=2, num_blocks=1, max_blocks=1, max_runs=5, block_s=10.0)
    for number, answer in answers.items():
        entry = content["programs"][names[number]] = _compiled(answer)
        if answer.error or time.monotonic() > end_s - 5:
            continue
        times_s, instructions = _profiled(lambda number=number: programs.run(number, budget))
        entry |= {"times_s": times_s, "num_runs": 7, "instructions": instructions}
        _write(out / "profile.json.gz", content)
    print(f"{len(content['programs'])} programs profiled", flush=True)


def _compiled(answer: Any) -> dict[str, Any]:
    """Returns the text and the bytes of a compiled program, or its error, as JSON has them."""
    return {"error": answer.error} if answer.error else dataclasses.asdict(answer.value)


def _collective_requests(platform: str) -> dict[str, Any]:
    """Programs that do nothing but communicate: they show what a mocked collective costs."""
    import jax.numpy as jnp
    from jax import P, ShapeDtypeStruct
    from jax.sharding import AbstractMesh, AxisType

    from jaxquard.pricing import reshard_program
    from jaxquard.pricing.mock_gpu.program_request import lower_request

    mesh = AbstractMesh((_NUM_DEVICES,), ("devices",), axis_types=(AxisType.Auto,))
    size = 256 if platform == "cpu" else 16384
    aval = ShapeDtypeStruct((size, size), jnp.bfloat16)
    moves = {
        "all-gather": (P("devices"), P()),
        "all-to-all": (P("devices"), P(None, "devices")),
        "copy": (P("devices"), P("devices")),
    }
    found = {}
    for name, (source, target) in moves.items():
        found[name], _ = lower_request(reshard_program(name, [aval], [source], [target]), mesh=mesh, platform=platform)
    return found


def _profiled(do: Any) -> tuple[Any, dict[str, float]]:
    """Returns the result, and the seconds of each instruction in all runs, by name and kernel."""
    import jax

    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    options.host_tracer_level = 1
    options.enable_hlo_proto = False
    times_s: dict[str, float] = defaultdict(float)
    with tempfile.TemporaryDirectory() as folder:
        jax.profiler.start_trace(folder, profiler_options=options)
        try:
            result = do()
        finally:
            jax.profiler.stop_trace()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for file in Path(folder).rglob("*.xplane.pb"):
                for name, time_s in _events(jax.profiler.ProfileData.from_file(str(file))):
                    times_s[name] += time_s
    return result, dict(times_s)


def _events(data: Any) -> Any:
    for plane in data.planes:
        if not plane.name.startswith("/device:"):
            continue
        for line in plane.lines:
            if not line.name.startswith("Stream"):
                continue
            for event in line.events:
                stats = {str(name): value for name, value in event.stats}
                yield f"{stats.get('hlo_op', '')}|{event.name}", event.duration_ns / 1e9


def _measure_kernels(out: Path, platform: str, limit_s: float, _: int) -> None:
    """Leaves the samples of a calibration of one device."""
    import jax

    from jaxquard.calibrate.kernel_cases import kernel_cases
    from jaxquard.calibrate.measure_kernels import measure_kernels

    devices = jax.devices()
    samples = measure_kernels(devices, kernel_cases(devices[0].platform, is_quick=False), limit_s=limit_s)
    rows = [{**dataclasses.asdict(sample), "kind": sample.kind.value} for sample in samples]
    content = {"device_kind": devices[0].device_kind, "samples": rows}
    _write(out / "kernels.json.gz", content)
    print(f"{len(samples)} kernels", flush=True)


def _write(path: Path, content: Any) -> None:
    with gzip.open(path, "wt") as file:
        json.dump(content, file)


def _guarded(stage: Any) -> Any:
    """Runs a stage; its error goes to the log and to a file."""

    def run(out: Path, platform: str, limit_s: float, first: int) -> None:
        try:
            stage(out, platform, limit_s, first)
        except Exception:
            text = traceback.format_exc()
            (out / f"{stage.__name__}.error.txt").write_text(text)
            print(text, flush=True)
            sys.exit(1)

    return run


_STAGES = {
    "pricer": _guarded(_try_pricer),
    "prices": _guarded(_measure_prices),
    "profile": _guarded(_measure_profile),
    "kernels": _guarded(_measure_kernels),
}

if __name__ == "__main__":
    main()
