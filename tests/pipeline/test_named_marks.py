"""Marks of one name are one boundary: models that call a function several times have the stages of one call."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxquard as jq
from jaxquard.errors import MarkError, ScheduleError
from tests.pipeline.oracle import assert_close, run_oracle
from tests.pipeline.planning import count_primitive, plan, runs, with_schedule
from tests.slow_but_for import slow_but_for

WIDTH = 4
SCHEDULES = [
    jq.schedules.OneFOneB(3),
    jq.schedules.GPipe(3),
    jq.schedules.ZeroBubbleH1(3),
    jq.schedules.Interleaved(3, 1),
]


def make_weights(*names, layers=3):
    rng = np.random.default_rng(0)
    return {name: [jnp.asarray(rng.normal(size=(WIDTH, WIDTH)), jnp.float32) for _ in range(layers)] for name in names}


def make_batch(*names, num_microbatches=4):
    rng = np.random.default_rng(1)
    return {name: jnp.asarray(rng.normal(size=(num_microbatches, 2, WIDTH)), jnp.float32) for name in names}


def stack(weights, hidden, name):
    """A network whose layers are stages: the boundaries are `name0`, `name1`."""
    for number, weight in enumerate(weights):
        hidden = jnp.tanh(hidden @ weight)
        if number < len(weights) - 1:
            hidden = jq.pipeline_yield(hidden, name=f"{name}{number}")
    return hidden


def critic(weights, x):
    return jnp.sum(stack(weights["critic"], x, "critic"), axis=-1)


def penalized_loss(weights, batch):
    """A Wasserstein critic's loss: three calls, one of them through its gradient (Gulrajani et al., 2017)."""
    between = 0.3 * batch["real"] + 0.7 * batch["fake"]
    slopes = jax.vmap(jax.grad(lambda x: critic(weights, x)))(between)
    penalty = jnp.mean((jnp.sqrt(jnp.sum(slopes**2, -1) + 1e-6) - 1) ** 2)
    return jnp.mean(critic(weights, batch["fake"])) - jnp.mean(critic(weights, batch["real"])) + 10 * penalty


def contrastive_loss(weights, batch):
    """Two towers with boundaries of the same names, and the loss of all pairs."""
    images, texts = stack(weights["image"], batch["image"], "tower"), stack(weights["text"], batch["text"], "tower")
    return -jnp.mean(jnp.diagonal(jax.nn.log_softmax(images @ texts.T)))


def translation_loss(weights, batch):
    """One encoder for two sources, a decoder that reads both."""
    sources = [stack(weights["encoder"], batch[name], "layer") for name in ("source", "context")]
    hidden = batch["target"]
    hidden = hidden + jnp.tanh(hidden @ weights["decoder"][0]) * sources[0]
    hidden = hidden + jnp.tanh(hidden @ weights["decoder"][1]) * sources[1]
    return jnp.mean((hidden @ weights["decoder"][2]) ** 2)


def curvature_loss(weights, batch):
    """A forward derivative inside the loss."""
    value, slope = jax.jvp(lambda x: critic(weights, x), (batch["real"],), (batch["fake"],))
    return jnp.mean(value**2) + jnp.mean(slope**2)


SCENARIOS = {
    "gradient penalty": (penalized_loss, ("critic",), ("real", "fake")),
    "two towers": (contrastive_loss, ("image", "text"), ("image", "text")),
    "shared encoder": (translation_loss, ("encoder", "decoder"), ("source", "context", "target")),
    "forward derivative": (curvature_loss, ("critic",), ("real", "fake")),
}


def step_of(loss):
    def step(accumulate, weights, batch):
        def microbatch_grads(microbatch):
            value, grads = jax.value_and_grad(loss)(weights, microbatch)
            return grads, value

        grads, losses = accumulate(microbatch_grads)(batch)
        return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, weights, grads), losses

    return step


def scenario(name):
    loss, weights, batch = SCENARIOS[name]
    return step_of(loss), make_weights(*weights), make_batch(*batch)


def gan_step(accumulate, weights, batch):
    """Both losses of a GAN: the discriminator sees real and made examples, and made ones again for the generator."""

    def generate(weights, noise):
        return jq.pipeline_yield(stack(weights["generator"], noise, "generator"), name="made")

    def discriminator_loss(weights, microbatch):
        made = jax.lax.stop_gradient(generate(weights, microbatch["noise"]))
        return jnp.mean(critic(weights, made)) - jnp.mean(critic(weights, microbatch["real"]))

    def generator_loss(weights, microbatch):
        return -jnp.mean(critic(weights, generate(weights, microbatch["noise"])))

    def microbatch_grads(microbatch):
        first, for_discriminator = jax.value_and_grad(discriminator_loss)(weights, microbatch)
        second, for_generator = jax.value_and_grad(generator_loss)(weights, microbatch)
        return {"critic": for_discriminator["critic"], "generator": for_generator["generator"]}, first, second

    grads, *losses = accumulate(microbatch_grads)(batch)
    return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, weights, grads), losses


def check(step, weights, batch, schedule):
    planned = plan(with_schedule(step, schedule), weights, batch, num_actors=schedule.num_actors)
    assert_close(planned.run(weights, batch), run_oracle(step, weights, batch))
    return planned


def forward_products(planned):
    """For each stage, the matrix products of its forward on one microbatch."""
    program = planned.program
    found = {run.task: count_primitive(program.calls[run.call].code, "dot_general") for _, run in runs(program)}
    return [found[task] for task in sorted(found) if task.endswith("F0")]


@pytest.mark.parametrize(
    ("name", "schedule"),
    slow_but_for(
        [(name, schedule) for name in SCENARIOS for schedule in SCHEDULES],
        kept=[
            ("gradient penalty", jq.schedules.ZeroBubbleH1(3)),
            ("two towers", jq.schedules.OneFOneB(3)),
            ("shared encoder", jq.schedules.GPipe(3)),
        ],
    ),
    ids=repr,
)
def test_scenarios(name, schedule):
    check(*scenario(name), schedule)


@pytest.mark.parametrize(
    "schedule", [jq.schedules.GPipe(4), pytest.param(jq.schedules.ZeroBubbleV(4), marks=pytest.mark.slow)], ids=repr
)
def test_two_losses_of_a_gan(schedule):
    weights, batch = make_weights("critic", "generator", layers=2), make_batch("real", "noise")
    planned = check(gan_step, weights, batch, schedule)
    if isinstance(schedule, jq.schedules.GPipe):
        assert forward_products(planned) == [2, 2, 3, 3]


def test_stages_hold_their_part_of_every_call():
    step, weights, batch = scenario("two towers")
    planned = check(step, weights, batch, jq.schedules.GPipe(3))
    assert forward_products(planned) == [2, 2, 3]
    held = [{item.arg for item in actor.inputs} for actor in planned.program.actors]
    assert [held[actor] & set(range(6)) for actor in range(3)] == [{0, 3}, {1, 4}, {2, 5}], "each stage its layers"


def test_gradients_inside_the_loss_are_of_the_forward():
    """They need all stages before, and what follows needs them: the last stage computes them."""
    planned = plan(
        with_schedule(step_of(penalized_loss), jq.schedules.GPipe(3)),
        make_weights("critic"),
        make_batch("real", "fake"),
        num_actors=3,
    )
    assert forward_products(planned) == [3, 3, 3 + 3]


def test_calls_of_a_jitted_function():
    block = jax.jit(lambda weights, x: stack(weights, x, "block"))

    def loss(weights, batch):
        return jnp.mean(block(weights["first"], batch["left"]) * block(weights["second"], batch["right"]))

    planned = check(step_of(loss), make_weights("first", "second"), make_batch("left", "right"), jq.schedules.GPipe(3))
    assert forward_products(planned) == [2, 2, 2]


def test_one_name_for_all_layers_of_two_calls():
    """The first mark of a call is that of the other, and so on: a mark that needs another is another boundary."""

    def tower(weights, hidden):
        for weight in weights:
            hidden = jq.pipeline_yield(jnp.tanh(hidden @ weight), name="layer")
        return hidden

    def loss(weights, batch):
        return jnp.mean(tower(weights["first"], batch["left"]) * tower(weights["second"], batch["right"]))

    weights = make_weights("first", "second", layers=2)
    planned = check(step_of(loss), weights, make_batch("left", "right"), jq.schedules.GPipe(3))
    assert forward_products(planned) == [2, 2, 0]


@pytest.mark.slow
def test_two_calls_of_a_named_scan():
    def tower(weights, hidden):
        return jq.pipeline_scan(lambda h, w: (jnp.tanh(h @ w), None), hidden, weights, num_stages=3, name="tower")[0]

    def loss(weights, batch):
        return jnp.mean(tower(weights["first"], batch["left"]) * tower(weights["second"], batch["right"]))

    weights = jax.tree.map(jnp.stack, make_weights("first", "second"), is_leaf=lambda node: isinstance(node, list))
    check(step_of(loss), weights, make_batch("left", "right"), jq.schedules.GPipe(3))


def test_contradicting_orders():
    def loss(weights, batch):
        left = jq.pipeline_yield(batch["left"] @ weights["w"][0], name="a")
        left = jq.pipeline_yield(left @ weights["w"][1], name="b")
        right = jq.pipeline_yield(batch["right"] @ weights["w"][0], name="b")
        right = jq.pipeline_yield(right @ weights["w"][1], name="a")
        return jnp.sum(left * right)

    line = loss.__code__.co_firstlineno
    here = "test_named_marks.py"
    expected = (
        f"the marks contradict each other: 'a' ({here}:{line + 1}) comes before 'b' ({here}:{line + 2}), but 'b' "
        f"({here}:{line + 3}) comes before 'a' ({here}:{line + 4}). Marks of one name are one boundary, so every call "
        "must pass them in the same order. Give different names to different boundaries."
    )
    with pytest.raises(MarkError) as raised:
        plan(with_schedule(step_of(loss), SCHEDULES[0]), make_weights("w"), make_batch("left", "right"), num_actors=3)
    assert str(raised.value) == expected


def test_without_names_every_call_has_its_own_boundaries():
    def loss(weights, batch):
        left, right = (jq.pipeline_yield(batch[name] @ weights["w"][0]) for name in ("left", "right"))
        return jnp.sum((left * right) @ weights["w"][1])

    with pytest.raises(ScheduleError, match=r"has 2 stages, but the function at .* makes 3 \(2 marks, the last at"):
        plan(
            with_schedule(step_of(loss), jq.schedules.OneFOneB(2)),
            make_weights("w"),
            make_batch("left", "right"),
            num_actors=2,
        )


@pytest.mark.parametrize("name", ["", 5, ["encoder"]])
def test_a_name_is_a_string(name):
    expected = r"pipeline_yield at test_named_marks.py:\d+ wants a string as name, such as 'encoder'; found "
    with pytest.raises(MarkError, match=expected + re.escape(repr(name))):
        jq.pipeline_yield(jnp.ones(()), name=name)
    with pytest.raises(MarkError, match=r"task at .* wants a string"):
        jq.task(jnp.sin, name=name)
