"""The cost of actors that are processes: the Ray runtime relative to the in-process one and to bare calls.

- control: a step of a program with no tasks on 4 actors, relative to 4 bare calls to the same processes.
- GPT: a training step of the demo's GPT on 4 actors of 2 devices.
- tiny tasks: 64 tasks and 48 messages of a 16-wide perceptron on 4 one-device actors.
- start: from `RemoteMesh(...)` to the end of the first step, with an empty and with a warm compilation cache.
"""

import statistics
import subprocess
import sys
import tempfile
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec

import jaxquard as jq
from benchmarks.measure import format_time, measure, print_ratios
from jaxquard.ir.program import ActorProgram, Input, Output, Program
from jaxquard.models import gpt
from tests.runtime.mlp_pipeline import MlpPipeline

CONTROL_TARGET_S = 3e-3
CONFIG = gpt.GptConfig(
    vocab_size=64, num_layers=4, num_heads=4, model_dim=64, sequence_length=32, dtype=jnp.float32, tied_embeddings=True
)
SCHEDULE = jq.schedules.OneFOneB(4)
OPTIMIZER = optax.adamw(1e-3)


def main() -> None:
    jax.config.update("jax_platforms", "cpu")
    _measure_control_and_tiny_tasks()
    _measure_gpt()
    _measure_start()


def _measure_control_and_tiny_tasks() -> None:
    pipeline = MlpPipeline()
    with jq.RemoteMesh((4,), runtime="ray") as far, jq.RemoteMesh((4,)) as near:
        empty = far.engine.load(Program(calls=(), actors=(ActorProgram(types=()),) * 4))
        handles = [worker.handle for worker in far.engine.group.all_workers()]

        def bare() -> None:
            far.engine.group.gather([handle.wait_idle(0.0) for handle in handles])

        def control() -> None:
            far.engine.execute(empty, [[]] * 4).wait()

        found = measure({"4 bare calls": bare, "an empty step": control}, num_rounds=300, num_warmups=30)
        print_ratios(found, title="control: 4 actors, no tasks", base="4 bare calls")
        verdict = "kept" if found["an empty step"].median_s <= CONTROL_TARGET_S else "missed"
        print(f"target of at most {format_time(CONTROL_TARGET_S)} for the control of a step: {verdict}")
        control_s = found["an empty step"].median_s
        found = measure(
            {"in process": _tiny_step(near, pipeline), "on Ray": _tiny_step(far, pipeline)},
            num_rounds=100,
            num_warmups=10,
        )
    num_tasks = pipeline.num_stages * pipeline.num_microbatches * 2
    print_ratios(found, title=f"tiny tasks: {num_tasks} tasks, 48 messages, 4 actors", base="in process")
    for name, measurement in found.items():
        print(f"{name}: {format_time(measurement.median_s / num_tasks)} a task")
    print(f"on Ray without control: {format_time((found['on Ray'].median_s - control_s) / num_tasks)} a task")


def _tiny_step(mesh, pipeline):
    loaded = mesh.engine.load(pipeline.program())
    inputs = _held(mesh.engine, loaded.program, pipeline.values())

    def step() -> None:
        mesh.engine.execute(loaded, inputs).wait()

    return step


def _held(engine, program, values):
    """The arguments of a program as cells: a step that returns what it was given leaves them on the actors."""
    actors = tuple(
        ActorProgram(
            types=tuple(actor.types[item.slot] for item in actor.inputs),
            inputs=tuple(Input(slot=slot, arg=item.arg) for slot, item in enumerate(actor.inputs)),
            outputs=tuple(Output(slot=slot, result=item.arg) for slot, item in enumerate(actor.inputs)),
        )
        for actor in program.actors
    )
    loaded = engine.load(Program(calls=(), actors=actors))
    inputs = [
        [loaded.place(values[item.arg], actor=number, number=k) for k, item in enumerate(actor.inputs)]
        for number, actor in enumerate(actors)
    ]
    return engine.execute(loaded, inputs).cells


def _init(key):
    params = gpt.init(key, CONFIG)
    return {"params": params, "opt": OPTIMIZER.init(params)}


def _train_step(state, batch):
    def microbatch_grads(microbatch):
        def loss(params):
            return gpt.loss(params, microbatch, CONFIG, mark=jq.pipeline_yield, num_stages=4)

        value, grads = jax.value_and_grad(loss)(state["params"])
        return grads, value

    grads, losses = jq.accumulate_grads(microbatch_grads, SCHEDULE)(batch)
    updates, opt = OPTIMIZER.update(grads, state["opt"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, jnp.mean(losses)


def _batch():
    return gpt.synthetic_batch(jax.random.key(1), CONFIG, num_microbatches=8, microbatch_size=4)


def _gpt_step(mesh):
    step = mesh.distributed(_train_step, in_shardings=(None, PartitionSpec(None, "data")), donate_argnums=(0,))
    state, batch = mesh.init(_init, jax.random.key(0)), jax.device_get(_batch())

    def run() -> None:
        nonlocal state
        state, loss = step(state, batch)
        np.asarray(loss)

    return run


def _measure_gpt() -> None:
    options = {"spmd_mesh": (2,), "spmd_axis_names": ("data",)}
    with jq.RemoteMesh((4,), **options) as near, jq.RemoteMesh((4,), runtime="ray", **options) as far:
        found = measure({"in process": _gpt_step(near), "on Ray": _gpt_step(far)}, num_rounds=30, num_warmups=3)
    print_ratios(found, title="GPT: 4 actors of 2 devices, 8 microbatches, AdamW", base="in process")


def _measure_start() -> None:
    with tempfile.TemporaryDirectory() as cache:
        code = f"from benchmarks.ray_runtime import start; start({cache!r})"
        times = [_run_start(code) for _ in range(4)]
    print(f"start, with an empty compilation cache: mesh {times[0][0]:.1f} s, to the first loss {times[0][1]:.1f} s")
    mesh_s, first_s = (statistics.median(column) for column in zip(*times[1:], strict=True))
    print(
        f"start, with a warm one: mesh {mesh_s:.1f} s, to the first loss {first_s:.1f} s (median of {len(times) - 1})"
    )


def _run_start(code: str) -> tuple[float, float]:
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    mesh_s, first_s = done.stdout.split()[-2:]
    return float(mesh_s), float(first_s)


def start(cache: str) -> None:
    """Prints the seconds until the mesh is there, and until the first loss is."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    start_s = time.perf_counter()
    with jq.RemoteMesh((4,), spmd_mesh=(2,), spmd_axis_names=("data",), runtime="ray") as mesh:
        mesh_s = time.perf_counter() - start_s
        _gpt_step(mesh)()
        print(mesh_s, time.perf_counter() - start_s)


if __name__ == "__main__":
    main()
