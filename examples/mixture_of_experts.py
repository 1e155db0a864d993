"""Trains a mixture of experts: layers are spread over actors, and each layer's experts over its actor's devices.

Tokens travel to their experts and back by all-to-all. Every stage adds its router's losses, and the load of its experts
comes back for every microbatch. Losses on one device are printed beside those on the actors.
"""

import argparse
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

import jaxquard as jq
from jaxquard.models.layers.language import embed, init_embedding, logits_of, token_losses
from jaxquard.models.layers.routed_block import init_routed_block, routed_block

VOCABULARY, LENGTH, DIM, NUM_LAYERS = 64, 16, 32, 4
BLOCK = {"model_dim": DIM, "num_heads": 4, "mlp_dim": 64, "num_experts": 4, "residual_scale": 0.02}
optimizer = optax.adam(1e-2)


def init_state(key):
    keys = jax.random.split(key, NUM_LAYERS + 2)
    embedding = init_embedding(keys[0], keys[1], VOCABULARY, LENGTH, DIM)
    params = {"embedding": embedding, "layers": [init_routed_block(key, **BLOCK) for key in keys[2:]]}
    return {"params": params, "opt": optimizer.init(params)}


def loss_fn(params, microbatch, *, num_stages, **routing_options):
    hidden, router_loss, loads = embed(params["embedding"], microbatch["tokens"]), 0.0, []
    for layer, layer_params in enumerate(params["layers"], start=1):
        hidden, routing = routed_block(layer_params, hidden, top_k=2, **routing_options)
        router_loss += 0.01 * routing.balance_loss + 0.001 * routing.z_loss
        loads.append(routing.load)
        if layer % (NUM_LAYERS // num_stages) == 0 and layer < NUM_LAYERS:
            hidden, router_loss = jq.pipeline_yield(hidden, router_loss)
    losses = token_losses(logits_of(hidden, params["embedding"]["tokens"]), microbatch["targets"])
    return jnp.mean(losses) + router_loss, loads


def train_step(state, batch, *, schedule, **options):
    def microbatch_grads(microbatch):
        loss = functools.partial(loss_fn, num_stages=schedule.num_stages, **options)
        (value, loads), grads = jax.value_and_grad(loss, has_aux=True)(state["params"], microbatch)
        return grads, value, loads

    grads, losses, loads = jq.accumulate_grads(microbatch_grads, schedule, ("mean", "stack", "stack"))(batch)
    updates, opt = optimizer.update(grads, state["opt"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, losses, loads


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--capacity", type=int, help="places of an expert in each row; without it, none is dropped")
    parser.add_argument("--schedule", choices=["OneFOneB", "ZeroBubbleV"], default="OneFOneB")
    parser.add_argument("--runtime", choices=["in_process", "ray"], default="in_process")
    args = parser.parse_args()
    schedule = {"OneFOneB": jq.schedules.OneFOneB(2), "ZeroBubbleV": jq.schedules.ZeroBubbleV(4)}[args.schedule]
    train = functools.partial(train_step, schedule=schedule, capacity=args.capacity)

    tokens = (jax.random.randint(jax.random.key(1), (4, 4, 1), 0, VOCABULARY) + jnp.arange(LENGTH + 1)) % VOCABULARY
    batch = {"tokens": tokens[..., :-1], "targets": tokens[..., 1:]}
    state = alone = init_state(jax.random.key(0))
    experts_over_axis = jax.tree.map_with_path(lambda path, _: P("x") if "experts" in str(path) else None, state)
    with jq.RemoteMesh((2,), (2,), ("x",), runtime=args.runtime) as mesh:
        step = mesh.distributed(functools.partial(train, axis="x"), in_shardings=(experts_over_axis, P(None, "x")))
        step_alone = jax.jit(functools.partial(train, axis=None))
        for number in range(3):
            (state, losses, loads), (alone, losses_alone, _) = step(state, batch), step_alone(alone, batch)
            print(f"step {number}: losses {np.asarray(losses)}, on one device {np.asarray(losses_alone)}")
        for layer, load in enumerate(loads):
            print(f"layer {layer}, share of each expert in the last microbatch: {np.asarray(load)[-1]}")


if __name__ == "__main__":
    main()
