"""A plan's step beside the same step written by hand with marks, constraints and specs.

Eight residual layers of 256 features on 4 actors of 2 devices, 1F1B with 8 microbatches, Adam; up-projections by
columns, down-projections by their contracted dim. First the instructions of both programs are counted, and the
bytes that actors send; then they run in turns. Target: 1.02 of the step by hand.
"""

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

import jaxquard as jq
from benchmarks.measure import Measurement, measure, print_ratios
from jaxquard.ir.array_type import type_bytes
from jaxquard.ir.program.instructions import Send
from jaxquard.planner.step.train_step import TrainStep

WIDTH, NUM_LAYERS, NUM_STAGES, NUM_MICROBATCHES, NUM_ROWS = 256, 8, 4, 8, 512
FIXED = {
    "stages": NUM_STAGES,
    "actors": NUM_STAGES,
    "schedule": "1f1b",
    "microbatches": NUM_MICROBATCHES,
    "mesh": "model=2",
    "recompute": "none",
    "storage": "as used",
    "layers.*.up": "columns",
    "layers.*.down": "contracted",
}
NUM_ROUNDS, STEPS_A_ROUND = 30, 3


def init(key: Any) -> Any:
    keys = jax.random.split(key, 2 * NUM_LAYERS)
    ups = [jax.random.normal(one, (WIDTH, 4 * WIDTH)) * 0.02 for one in keys[::2]]
    downs = [jax.random.normal(one, (4 * WIDTH, WIDTH)) * 0.02 for one in keys[1::2]]
    return {"layers": [{"up": up, "down": down} for up, down in zip(ups, downs, strict=True)]}


def loss(params: Any, batch: Any) -> Any:
    """Has no marks and no constraints."""
    x = batch["x"]
    for layer in params["layers"]:
        x = x + jnp.tanh(x @ layer["up"]) @ layer["down"]
    return jnp.mean((x - batch["y"]) ** 2)


def loss_by_hand(params: Any, batch: Any) -> Any:
    """Has what a user writes: a mark after every other layer, and where the hidden features lie."""
    x = batch["x"]
    for number, layer in enumerate(params["layers"]):
        if number and number % (NUM_LAYERS // NUM_STAGES) == 0:
            x = jq.pipeline_yield(x)
        hidden = jax.lax.with_sharding_constraint(jnp.tanh(x @ layer["up"]), P(None, "model"))
        x = jax.lax.with_sharding_constraint(x + hidden @ layer["down"], P())
    return jnp.mean((x - batch["y"]) ** 2)


def main() -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", 8)
    rows = jax.random.normal(jax.random.key(1), (NUM_ROWS, WIDTH))
    batch = {"x": rows, "y": jnp.sin(rows)}
    optimizer = optax.adam(1e-3)
    run = jq.parallelize(
        loss, optimizer, (jax.eval_shape(init, jax.random.key(0)), batch), devices=8, fix=FIXED, num_measured=0
    )
    state = run.init(init, jax.random.key(0))
    mesh, by_hand, own_state = _by_hand(optimizer)
    with run, mesh:
        _compare_programs(run.distributed.lower(state, batch).program, by_hand.lower(own_state, batch).program)
        states = {"by hand": own_state, "plan": state}
        steps = {"by hand": by_hand, "plan": run.distributed}

        def some_steps(name: str) -> Any:
            for _ in range(STEPS_A_ROUND):
                states[name], metrics = steps[name](states[name], batch)
            return metrics["loss"].block_until_ready()

        found = measure({name: lambda name=name: some_steps(name) for name in steps}, num_rounds=NUM_ROUNDS)
    _print(found)


def _by_hand(optimizer: Any) -> tuple[jq.RemoteMesh, Any, Any]:
    schedule = jq.schedules.OneFOneB(NUM_STAGES)
    step = TrainStep(loss=loss_by_hand, optimizer=optimizer, num_microbatches=NUM_MICROBATCHES, schedule=schedule)
    mesh = jq.RemoteMesh((NUM_STAGES,), spmd_mesh=(2,), spmd_axis_names=("model",))
    state = mesh.init(lambda key: step.init(init(key)), jax.random.key(0))
    of_layer = {"up": P(None, "model"), "down": P("model", None)}
    types = jax.eval_shape(lambda key: step.init(init(key)), jax.random.key(0))
    specs = jax.tree_util.tree_map_with_path(lambda path, _: of_layer.get(getattr(path[-1], "key", None)), types)
    return mesh, mesh.distributed(step, in_shardings=(specs, None), donate_argnums=(0,)), state


def _compare_programs(planned: Any, written: Any) -> None:
    """Prints what the two programs are made of."""
    for name, program in (("by hand", written), ("plan", planned)):
        kinds = Counter(type(one).__name__ for actor in program.actors for one in actor.instructions)
        sent = sum(
            type_bytes(actor.types[slot])
            for actor in program.actors
            for one in actor.instructions
            if isinstance(one, Send)
            for slot in one.slots
        )
        print(f"{name}: {dict(kinds)}, {sent} bytes sent")


def _print(found: dict[str, Measurement]) -> None:
    title = f"{NUM_LAYERS} layers, {NUM_STAGES} actors of 2 devices, {STEPS_A_ROUND} steps a round"
    print_ratios(found, title=title, base="by hand", at_most={"plan": 1.02})


if __name__ == "__main__":
    main()
