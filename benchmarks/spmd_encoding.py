"""A pipeline of actors relative to the SPMD encoding of a pipeline (JaxPP, section 2.2.2).

The encoding is one jit over the same devices: the stages' weights are stacked and sharded over a mesh axis, every
iteration runs all stages at once on a rotating buffer, and autodiff gives the backward: the GPipe order. In the bubble
it computes results that it discards, and it keeps the activations of all iterations. Both train the same small GPT with
the same gradients.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

import jaxquard as jq
from benchmarks.live_memory import jit_peak_bytes, program_peak_bytes
from benchmarks.measure import measure, print_ratios
from jaxquard.models import gpt

NUM_STAGES, NUM_MICROBATCHES, MICROBATCH_SIZE = 4, 8, 4
CONFIG = gpt.GptConfig(vocab_size=256, num_layers=8, num_heads=4, model_dim=128, sequence_length=64, dtype=jnp.float32)


def init_params(key):
    return gpt.stack_layers(gpt.init(key, CONFIG))


def update(params, grads):
    return jax.tree.map(lambda param, grad: param - 1e-3 * grad, params, grads)


def pipelined_step(params, batch, *, schedule, remat):
    scan = functools.partial(jq.pipeline_scan, num_stages=NUM_STAGES)

    def microbatch_grads(microbatch):
        loss = functools.partial(gpt.loss_scanned, config=CONFIG, scan=scan, remat=remat)
        value, grads = jax.value_and_grad(loss)(params, microbatch)
        return grads, value

    grads, losses = jq.accumulate_grads(microbatch_grads, schedule)(batch)
    return update(params, grads), jnp.mean(losses)


def spmd_scan(body, hidden, stacked, *, sharding):
    """Runs stacked layers on all microbatches, as an SPMD program."""
    shape = (NUM_MICROBATCHES, MICROBATCH_SIZE, *hidden.shape[1:])
    microbatches = hidden.reshape(shape)
    stages = jax.tree.map(lambda leaf: leaf.reshape(NUM_STAGES, -1, *leaf.shape[1:]), stacked)
    constrain = functools.partial(jax.lax.with_sharding_constraint, shardings=sharding)

    def run_stage(layers, hidden):
        return jax.lax.scan(body, hidden, layers)[0]

    def iteration(carry, number):
        state, outputs = carry
        newest = microbatches[jnp.minimum(number, NUM_MICROBATCHES - 1)]
        state = constrain(state.at[0].set(newest))
        state = constrain(jax.vmap(run_stage)(stages, state))
        place = jnp.maximum(number - NUM_STAGES + 1, 0)
        outputs = jax.lax.dynamic_update_index_in_dim(outputs, state[-1], place, 0)
        return (constrain(jnp.roll(state, 1, axis=0)), outputs), None

    start = (jnp.zeros((NUM_STAGES, *shape[1:]), hidden.dtype), jnp.zeros(shape, hidden.dtype))
    (_, outputs), _ = jax.lax.scan(iteration, start, jnp.arange(NUM_MICROBATCHES + NUM_STAGES - 1))
    return outputs.reshape(hidden.shape), None


def spmd_step(params, batch, *, sharding, remat):
    whole = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), batch)
    scan = functools.partial(spmd_scan, sharding=sharding)

    def loss(params):
        return gpt.loss_scanned(params, whole, CONFIG, scan=scan, remat=remat)

    value, grads = jax.value_and_grad(loss)(params)
    return update(params, jax.tree.map(lambda grad: grad * NUM_MICROBATCHES, grads)), value


def temporaries(program, mesh):
    """Bytes of temporaries of each call of a program."""
    found = {}
    for number, call in enumerate(program.calls):
        types = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in call.code.jaxpr.invars]
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            lowered = jax.jit(core.jaxpr_as_fun(call.code), donate_argnums=call.donated, keep_unused=True).lower(*types)
            found[number] = lowered.compile().memory_analysis().temp_size_in_bytes
    return found


def main() -> None:
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", NUM_STAGES)
    batch = gpt.synthetic_batch(
        jax.random.key(1), CONFIG, num_microbatches=NUM_MICROBATCHES, microbatch_size=MICROBATCH_SIZE
    )
    devices = Mesh(np.array(jax.devices()), ("stage",), axis_types=(AxisType.Auto,))
    by_stage = NamedSharding(devices, PartitionSpec("stage"))
    whole = NamedSharding(devices, PartitionSpec())
    mesh = jq.RemoteMesh((NUM_STAGES,))
    for remat in (False, True):
        schedule = jq.schedules.OneFOneB(NUM_STAGES)
        ours = mesh.distributed(functools.partial(pipelined_step, schedule=schedule, remat=remat))
        params = mesh.init(init_params, jax.random.key(0))
        shardings = jax.tree_util.tree_map_with_path(
            lambda path, leaf: by_stage if path[0].key == "layers" else whole, init_params(jax.random.key(0))
        )
        spmd_params = jax.device_put(init_params(jax.random.key(0)), shardings)
        spmd_batch = jax.device_put(batch, whole)
        spmd = jax.jit(
            functools.partial(spmd_step, sharding=by_stage, remat=remat),
            in_shardings=(shardings, whole),
            out_shardings=(shardings, whole),
        )
        compiled = spmd.lower(spmd_params, spmd_batch).compile()
        losses = [float(ours(params, batch)[1]), float(compiled(spmd_params, spmd_batch)[1])]
        np.testing.assert_allclose(*losses, rtol=1e-5)
        found = measure(
            {
                "SPMD encoding, one jit": functools.partial(compiled, spmd_params, spmd_batch),
                "jaxquard, 1F1B": functools.partial(ours, params, batch),
            },
            num_rounds=12,
        )
        print_ratios(
            found,
            title=f"{NUM_STAGES} stages, {NUM_MICROBATCHES} microbatches, remat={remat}",
            base="SPMD encoding, one jit",
            at_most={"jaxquard, 1F1B": 1.0},
        )
        (ready,) = ours._ready.values()
        program = ready.loaded.program
        peaks = program_peak_bytes(program, temporaries(program, mesh), {"data": 1})
        spmd_peak = jit_peak_bytes(compiled)
        per_actor = ", ".join(f"{peak / 1e6:.1f}" for peak in peaks)
        print(
            f"peak live memory a device: SPMD {spmd_peak / 1e6:.1f} MB; jaxquard by actor {per_actor} MB "
            f"({max(peaks) / spmd_peak:.2f} of it)\n"
        )


if __name__ == "__main__":
    main()
