"""Stacked leaves exist only in parts: each actor holds, computes and updates its own layers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxquard as jq
from tests.pipeline.mlp_step import adamw
from tests.pipeline.oracle import assert_close, run_oracle
from tests.pipeline.planning import is_loop_task, plan, sends, with_schedule

NUM_LAYERS = 5


def scanned_step(num_stages, optimizer):
    def step(accumulate, state, batch):
        def loss(params, x):
            body = lambda h, layer: (jnp.tanh(h @ layer["kernel"] + layer["bias"]), None)  # noqa: E731
            hidden, _ = jq.pipeline_scan(body, x, params["layers"], num_stages=num_stages)
            return jnp.sum(jnp.square(hidden @ params["head"]))

        def microbatch_grads(x):
            value, grads = jax.value_and_grad(loss)(state["params"], x)
            return grads, value

        grads, losses = accumulate(microbatch_grads)(batch)
        updates, opt = optimizer.update(grads, state["opt"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "opt": opt}, losses

    rng = np.random.default_rng(0)
    params = {
        "layers": {
            "kernel": jnp.asarray(rng.normal(size=(NUM_LAYERS, 3, 3)), jnp.float32),
            "bias": jnp.zeros((NUM_LAYERS, 3)),
        },
        "head": jnp.asarray(rng.normal(size=(3, 2)), jnp.float32),
    }
    state = {"params": params, "opt": optimizer.init(params)}
    return step, state, jnp.asarray(rng.normal(size=(3, 2, 3)), jnp.float32)


def parts_held(planned, args):
    """For each leaf, the (actor, part) pairs that hold it."""
    held = [
        tuple(
            (actor, item.part)
            for actor, found in enumerate(planned.program.actors)
            for item in found.inputs
            if item.arg == arg
        )
        for arg in range(len(jax.tree.leaves(args)))
    ]
    return jax.tree.unflatten(jax.tree.structure(args), held)


@pytest.mark.parametrize(
    ("schedule", "sizes", "actors"),
    [
        (jq.schedules.OneFOneB(2), (3, 2), [0, 1]),
        pytest.param(jq.schedules.ZeroBubbleV(4), (2, 1, 1, 1), [0, 1, 1, 0], marks=pytest.mark.slow),
        pytest.param(jq.schedules.Interleaved(4, 2), (2, 1, 1, 1), [0, 1, 0, 1], marks=pytest.mark.slow),
    ],
    ids=repr,
)
def test_parameters_and_moments_are_in_parts(schedule, sizes, actors):
    step, state, batch = scanned_step(schedule.num_stages, adamw())
    planned = plan(with_schedule(step, schedule), state, batch, num_actors=schedule.num_actors)
    held, _ = parts_held(planned, (state, batch))
    expected = tuple(sorted((actor, part) for part, actor in enumerate(actors)))
    adam = held["opt"][1][0]
    for layers in (held["params"]["layers"], adam.mu["layers"], adam.nu["layers"]):
        assert {name: tuple(sorted(found)) for name, found in layers.items()} == {"kernel": expected, "bias": expected}
    sizes_of = jax.tree.unflatten(jax.tree.structure((state, batch)), planned.planned.arg_parts)
    assert sizes_of[0]["params"]["layers"]["kernel"] == sizes
    assert sizes_of[0]["params"]["head"] == ()
    outside = {type_ for _, _, type_, before in sends(planned.program) if not is_loop_task(before)}
    assert all(type_.endswith("[]") for type_ in outside), "only scalars cross"
    assert_close(planned.run(state, batch), run_oracle(step, state, batch))


def step_with_update(update):
    """A scan in two stages whose stacked kernel is updated by `update(kernel, grad)`; more results may follow."""

    def step(accumulate, kernel, batch):
        def loss(kernel, x):
            hidden, _ = jq.pipeline_scan(lambda h, w: (jnp.tanh(h @ w), None), x, kernel, num_stages=2)
            return jnp.sum(hidden)

        grads = accumulate(lambda x: jax.grad(loss)(kernel, x))(batch)
        return update(kernel, grads)

    return step


UPDATES = {
    "elementwise": lambda kernel, grad: (kernel - 0.1 * jnp.tanh(grad),),
    "norms of layers": lambda kernel, grad: (
        kernel - 0.1 * grad / (1 + jnp.sqrt(jnp.sum(grad**2, axis=(1, 2), keepdims=True))),
    ),
    "norm of all": lambda kernel, grad: (kernel - grad / (1 + jnp.sum(grad**2)), jnp.max(grad), jnp.min(kernel)),
    "transposed": lambda kernel, grad: (kernel - jnp.swapaxes(jnp.swapaxes(grad, 1, 2) * 0.1, 1, 2),),
    "products of layers": lambda kernel, grad: (kernel - 0.1 * jnp.einsum("lab,lbc->lac", grad, kernel),),
    "means over the layers": lambda kernel, grad: (kernel - 0.1 * jnp.mean(grad, axis=0), jnp.mean(grad, axis=0)),
    "reshaped": lambda kernel, grad: (kernel - 0.1 * (grad.reshape(3, 9) * 2).reshape(3, 3, 3),),
    "rolled over the layers": lambda kernel, grad: (kernel - 0.1 * jnp.roll(grad, 1, axis=0),),
    "sorted": lambda kernel, grad: (kernel - 0.1 * jnp.sort(grad, axis=0),),
    "one layer": lambda kernel, grad: (kernel - 0.1 * grad, grad[1], kernel[2]),
    "scaled by layer": lambda kernel, grad: (kernel - jnp.arange(3.0)[:, None, None] * grad,),
    "noise": lambda kernel, grad: (kernel - grad + jax.random.normal(jax.random.key(0), kernel.shape),),
    "flattened": lambda kernel, grad: (kernel - grad, grad.reshape(-1), jnp.concatenate([kernel, grad])),
}


@pytest.mark.thin(3)
@pytest.mark.parametrize("update", UPDATES.values(), ids=UPDATES)
def test_updates_of_any_form(update):
    """A primitive without a rule runs on the joined value, which is always right."""
    kernel = jnp.asarray(np.random.default_rng(0).normal(size=(3, 3, 3)), jnp.float32)
    batch = jnp.asarray(np.random.default_rng(1).normal(size=(2, 2, 3)), jnp.float32)
    step = step_with_update(update)
    planned = plan(with_schedule(step, jq.schedules.OneFOneB(2)), kernel, batch, num_actors=2)
    assert_close(planned.run(kernel, batch), run_oracle(step, kernel, batch))
    assert planned.planned.arg_parts[0] == (2, 1)


def test_two_scans_over_one_stack_that_are_split_differently():
    def step(accumulate, kernel, batch):
        def loss(kernel, x):
            body = lambda h, w: (jnp.tanh(h @ w), None)  # noqa: E731
            hidden, _ = jq.pipeline_scan(body, x, kernel, num_stages=2)
            hidden, _ = jq.pipeline_scan(body, jq.pipeline_yield(hidden), kernel, num_stages=3)
            return jnp.sum(hidden)

        return kernel - 0.1 * accumulate(lambda x: jax.grad(loss)(kernel, x))(batch)

    kernel = jnp.asarray(np.random.default_rng(0).normal(size=(3, 3, 3)), jnp.float32)
    batch = jnp.asarray(np.random.default_rng(1).normal(size=(2, 2, 3)), jnp.float32)
    planned = plan(with_schedule(step, jq.schedules.OneFOneB(5)), kernel, batch, num_actors=5)
    assert_close(planned.run(kernel, batch), run_oracle(step, kernel, batch))


def test_a_penalty_on_the_stack_itself():
    """The loss's own use of the whole leaf runs part by part too: no actor ever has the others' layers."""

    def step(accumulate, kernel, batch):
        def loss(kernel, x):
            hidden, means = jq.pipeline_scan(lambda h, w: (jnp.tanh(h @ w), jnp.mean(h)), x, kernel, num_stages=2)
            penalty = jnp.sum(jnp.square(kernel)) + jnp.sum(means * jnp.arange(1.0, 4.0))
            return jnp.sum(hidden) + 0.1 * penalty

        def microbatch_grads(x):
            value, grads = jax.value_and_grad(loss)(kernel, x)
            return grads, value

        grads, losses = accumulate(microbatch_grads)(batch)
        return kernel - 0.1 * grads, losses

    kernel = jnp.asarray(np.random.default_rng(0).normal(size=(3, 3, 3)), jnp.float32)
    batch = jnp.asarray(np.random.default_rng(1).normal(size=(2, 2, 3)), jnp.float32)
    planned = plan(with_schedule(step, jq.schedules.OneFOneB(2)), kernel, batch, num_actors=2)
    assert_close(planned.run(kernel, batch), run_oracle(step, kernel, batch))
    crossing = {type_ for _, _, type_, _ in sends(planned.program)}
    assert not any(type_.endswith("3,3]") for type_ in crossing), crossing
