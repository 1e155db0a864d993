"""Sums that may not leave the loop, or not over the devices, and sums that are large."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec

import jaxquard as jq
from jaxquard.errors import LoopError, ScheduleError
from tests.pipeline.oracle import run_oracle
from tests.pipeline.planning import plan, with_schedule

SCHEDULE = jq.schedules.OneFOneB(2)
PARAMS = [*np.random.default_rng(1).normal(scale=0.5, size=(2, 4, 4)).astype(np.float32)]
BATCH = np.random.default_rng(0).normal(size=(5, 2, 4)).astype(np.float32)


def check(step, *, batch=BATCH, rtol=2e-5):
    found = plan(with_schedule(step, SCHEDULE), PARAMS, batch, num_actors=2).run(PARAMS, batch)
    expected = run_oracle(step, PARAMS, batch)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6), found, expected)


def counted(round_off):
    """A step that sums a whole number made of values of two actors."""

    def step(loop, params, batch):
        def count(x):
            hidden = jnp.tanh(x @ params[0])
            first = jnp.sum(hidden) + 0.7
            hidden = jq.pipeline_yield(hidden)
            return round_off(first, jnp.sum(hidden @ params[1]) + 0.7)

        return params, loop(count, "sum")(batch)

    return step


def test_a_cast_to_integers_stays_after_its_sum():
    check(counted(lambda first, second: (first + second).astype(jnp.int32)))


def test_a_division_of_integers_stays_after_its_sum():
    check(counted(lambda first, second: lax.div(first.astype(jnp.int32) + second.astype(jnp.int32), 2)))


def test_a_cast_between_floats_moves_to_the_terms():
    # Five terms, each rounded to the 11 bits of a float16.
    check(counted(lambda first, second: (first + second).astype(jnp.float16).astype(jnp.float32)), rtol=5 * 2**-11)


def grads_of(loss):
    def step(loop, params, batch):
        grads, losses = loop(lambda x: jax.value_and_grad(loss)(params, x)[::-1])(batch)
        return [param - 0.1 * grad for param, grad in zip(params, grads, strict=True)], losses

    return step


@pytest.mark.slow
def test_a_weight_used_hundreds_of_times():
    def loss(params, x):
        hidden = x
        for use in range(400):
            hidden = hidden + 0.001 * jnp.sin(hidden @ params[0])
            if use == 200:
                hidden = jq.pipeline_yield(hidden)
        return jnp.mean((hidden @ params[1]) ** 2)

    check(grads_of(loss), batch=BATCH[:1])


def test_a_sum_that_is_used_twice_is_not_opened_again_and_again():
    def step(loop, params, batch):
        def total(x):
            hidden = jnp.tanh(x @ params[0])
            first = jnp.sum(hidden)
            hidden = jq.pipeline_yield(hidden)
            value = first + jnp.sum(hidden @ params[1])
            for _ in range(30):
                value = value * 0.5 + value * 0.5
            return value

        return params, loop(total, "sum")(batch)

    check(step)


@pytest.fixture(scope="module")
def mesh():
    with jq.RemoteMesh((2,), spmd_mesh=(2,), spmd_axis_names=("data",)) as mesh:
        yield mesh


@pytest.mark.parametrize(
    "last",
    [
        lambda total: jnp.pad(total, 1, constant_values=1.0),
        lambda total: jnp.pad(total, 1),
        lambda total: jnp.abs(total * 4).astype(jnp.uint8),
        lambda total: total.astype(jnp.float16),
    ],
    ids=["padded with ones", "padded with zeros", "cast to uint8", "cast to float16"],
)
def test_sums_over_the_data_axis(mesh, last):
    def step(loop, params, batch):
        def total(x):
            hidden = jq.pipeline_yield(jnp.tanh(x @ params[0]))
            return last((hidden @ params[1]).sum(0))

        return loop(total, "sum")(batch)

    distributed = mesh.distributed(with_schedule(step, SCHEDULE), in_shardings=(None, PartitionSpec(None, "data")))
    found, expected = jax.device_get(distributed(PARAMS, BATCH)), run_oracle(step, PARAMS, BATCH)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found.astype(np.float32), np.asarray(expected, np.float32), rtol=2e-3, atol=2e-3)


def test_a_loop_may_be_differentiated_under_plain_jit():
    def mean(params):
        loss = lambda x: jnp.mean((jq.pipeline_yield(jnp.tanh(x @ params[0])) @ params[1]) ** 2)  # noqa: E731
        return jq.accumulate_grads(loss, SCHEDULE, "mean")(BATCH)

    def plain(params):
        return sum(jnp.mean((jnp.tanh(x @ params[0]) @ params[1]) ** 2) for x in BATCH) / len(BATCH)

    found, expected = jax.jit(jax.grad(mean))(PARAMS), jax.grad(plain)(PARAMS)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_a_schedule_without_a_backward_is_refused():
    rows = [",".join(f"{stage}F{microbatch}" for microbatch in range(5)) for stage in range(2)]
    step = with_schedule(
        grads_of(lambda params, x: jnp.sum(jq.pipeline_yield(x @ params[0]) @ params[1])), jq.schedules.Custom(rows)
    )
    with pytest.raises(ScheduleError, match=r"has a backward in stage 1, but .* runs no B, or I and W, of it"):
        plan(step, PARAMS, BATCH, num_actors=2)


def test_gradients_of_integers_are_refused():
    def step(params, batch):
        grads = lambda x: jax.grad(lambda p: jnp.sum(x * p), allow_int=True)(params)  # noqa: E731
        return jq.accumulate_grads(grads, jq.schedules.GPipe(1))(batch)

    with pytest.raises(LoopError, match="float0"):
        jax.make_jaxpr(step)(np.arange(4), BATCH)


def test_the_most_of_complex_numbers_is_refused():
    with pytest.raises(LoopError, match="complex numbers have no order"):
        jq.accumulate_grads(lambda x: x + 1j, jq.schedules.GPipe(1), "max")(BATCH)


def test_a_named_tuple_or_a_list_is_one_output_and_a_tuple_is_several():
    from typing import NamedTuple

    class Grads(NamedTuple):
        first: jax.Array
        second: jax.Array

    whole = jq.accumulate_grads(lambda x: Grads(x.sum(), x.mean()), jq.schedules.GPipe(1))(BATCH)
    assert whole.first.shape == whole.second.shape == ()
    both = jq.accumulate_grads(lambda x: [x.sum(), x.mean()], jq.schedules.GPipe(1))(BATCH)
    assert [total.shape for total in both] == [(), ()]
    summed, stacked = jq.accumulate_grads(lambda x: (x.sum(), x.mean()), jq.schedules.GPipe(1))(BATCH)
    assert (summed.shape, stacked.shape) == ((), (5,))
