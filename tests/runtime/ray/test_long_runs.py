"""Many steps, and large messages: memory stays flat, and what nobody holds is freed on the actors."""

import gc
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxquard as jq
from tests.pipeline.oracle import assert_close
from tests.runtime.ray.processes import call_inside, process_id, wait_until
from tests.runtime.test_distributed import expected_sgd, fetched, make_batch, make_weights, sgd_step

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

MB = 2**20


@pytest.fixture(scope="module")
def mesh(shared_meshes):
    return shared_meshes["narrow"]


def memory_bytes(pid):
    """The memory that a process does not share."""
    pages = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(pages[1]) - int(pages[2])) * os.sysconf("SC_PAGE_SIZE")


def num_cells(mesh):
    return [call_inside(mesh, actor, lambda process: len(process._cells))[0] for actor in range(mesh.num_actors)]


@pytest.mark.slow
def test_memory_stays_flat_over_300_steps(mesh):
    """One copy of the batch or of the state kept by each step would show as 19 MB, or 75 MB."""
    width = 128
    step = mesh.distributed(sgd_step, donate_argnums=0)
    state, batch = make_weights(width), np.full((4, 32, width), 1e-3, np.float32)
    processes = [os.getpid(), *(process_id(mesh, actor) for actor in (0, 1))]

    def train(num_steps):
        nonlocal state
        for number in range(num_steps):
            state, losses = step(state, batch)
            if number % 10 == 0:
                assert np.isfinite(np.asarray(losses)).all()
        jax.block_until_ready(state)
        gc.collect()

    train(100)
    before = [memory_bytes(process) for process in processes]
    train(300)
    grown = [memory_bytes(process) - start for process, start in zip(processes, before, strict=True)]
    assert max(grown) < 12 * MB, grown


def test_dropped_handles_are_freed(mesh):
    gc.collect()
    step = mesh.distributed(sgd_step)
    weights, batch = make_weights(32), make_batch(width=32)
    jax.block_until_ready(step(weights, batch))
    wait_until(lambda: num_cells(mesh) == num_cells(mesh))
    gc.collect()
    held = [step(weights, batch) for _ in range(5)]
    jax.block_until_ready(held)
    full = num_cells(mesh)
    for _ in range(20):
        jax.block_until_ready(step(weights, batch))
    assert max(np.subtract(num_cells(mesh), full)) <= 8, "a step or two may not be reported yet"
    del held
    gc.collect()
    wait_until(lambda: max(np.subtract(num_cells(mesh), full)) <= -5)


def test_dropped_programs_are_forgotten(mesh):
    def count():
        return call_inside(mesh, 0, lambda process: len(process._programs))[0]

    before = count()
    for number in range(3):
        np.asarray(mesh.distributed(lambda x, number=number: x + number)(np.ones(2, np.float32)))
    gc.collect()
    wait_until(lambda: count() <= before)


@pytest.mark.parametrize("size", [16 * MB, 1], ids=["64MB", "4B"])
def test_large_messages_in_both_directions(mesh, size):
    """A hidden value of 64 MB crosses forwards, and its gradient back."""

    def step_fn(weight, batch):
        def loss(weight, x):
            hidden = jq.pipeline_yield(weight * jnp.arange(float(size)) + x)
            return jnp.sum(jnp.sin(hidden))

        def microbatch_grads(x):
            value, grad = jax.value_and_grad(loss)(weight, x)
            return grad, value

        return jq.accumulate_grads(microbatch_grads, jq.schedules.OneFOneB(2))(batch)

    weight, batch = np.float32(1e-7), np.array([0.5, 0.25], np.float32)
    grad, values = mesh.distributed(step_fn)(weight, batch)
    angles = [np.float64(weight) * np.arange(size) + x for x in batch]
    np.testing.assert_allclose(values, [np.sin(angle).sum() for angle in angles], rtol=1e-4)
    np.testing.assert_allclose(grad, sum((np.cos(angle) * np.arange(size)).sum() for angle in angles), rtol=1e-4)


def test_large_arguments_and_results(mesh):
    """Host values that both actors take, and results of 16 MB."""
    x = np.random.default_rng(0).normal(size=(2048, 2048)).astype(np.float32)

    @mesh.distributed
    def step(x, batch):
        def outputs(y):
            return jnp.mean(jq.pipeline_yield(x * y) + x)

        return x + 1, jq.accumulate_grads(outputs, jq.schedules.OneFOneB(2), "stack")(batch)

    larger, means = step(x, np.array([1, 2], np.float32))
    np.testing.assert_array_equal(larger, x + 1)
    np.testing.assert_allclose(means, [2 * x.mean(), 3 * x.mean()], rtol=1e-3, atol=1e-6)


def test_losses_that_are_read_late(mesh):
    """Handles of all steps are kept, and read at the end."""
    step = mesh.distributed(sgd_step, donate_argnums=0)
    state, batch, history = make_weights(), make_batch(), []
    for _ in range(20):
        state, losses = step(state, batch)
        history.append(losses)
    expected = make_weights()
    for losses in history:
        expected, expected_losses = expected_sgd(expected, batch)
        assert_close(fetched(losses), expected_losses)
