"""Actors that are killed, frozen, out of memory or in error: the step says so in time, and training can go on."""

import contextlib
import functools
import os
import re
import signal
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxquard as jq
from jaxquard.errors import ActorFailed, DeletedArrayError, MeshError
from tests.runtime.checkpoint.listing import names_in
from tests.runtime.ray import spinning_step
from tests.runtime.ray.processes import activity, call_inside, freeze, kill, process_id, wait_for_activity, wait_until
from tests.runtime.ray.spoil import fail_in

pytest.importorskip("ray")
pytestmark = pytest.mark.ray
SLOW = pytest.mark.slow

# The heartbeat timeout for frozen actors (`watch_closely`); on a busy machine a healthy one may miss it too.
LIMIT_S = 4.0
CALM_S = 60.0
# What it may take on top, on a machine that is busy: to kill a process, read its log, wake a thread.
SLACK_S = 26.0
# What is known without waiting comes sooner than a heartbeat would be missed.
PROMPT_S = CALM_S / 2
KEY = jax.random.key(0)
# A step of about 12 s on an idle machine.
LONG = 200_000


@pytest.fixture(scope="module")
def started():
    with jq.RemoteMesh((2,), runtime="ray", heartbeat_timeout_s=LIMIT_S) as mesh:
        mesh.engine.monitor.timeout_s = CALM_S
        yield mesh


@pytest.fixture
def mesh(started):
    """All actors live, and nothing runs."""
    started.engine.monitor.timeout_s = CALM_S
    started.restart()
    return started


def watch_closely(mesh):
    mesh.engine.monitor.timeout_s = LIMIT_S


@pytest.fixture(scope="module")
def step(started):
    return started.distributed(spinning_step.train_step, donate_argnums=0)


@pytest.fixture(scope="module")
def run(started, step, tmp_path_factory):
    """A checkpoint after two steps, and the losses of three more."""
    state, _ = train(step, started.init(spinning_step.init, KEY), 2)
    path = tmp_path_factory.mktemp("run") / "last"
    jq.save(path, state).wait()
    return path, train(step, state, 3)[1]


def train(step, state, num_steps):
    losses = []
    for _ in range(num_steps):
        state, loss = step(state, spinning_step.batch(), 0)
        losses.append(np.asarray(loss).tobytes())
    return state, losses


def initial_state(mesh):
    return mesh.init(spinning_step.init, KEY)


def failure_of(function, limit_s=LIMIT_S + SLACK_S):
    """The error that a call raises, which must come in time."""
    start_s = time.monotonic()
    with pytest.raises(ActorFailed) as caught:
        function()
    assert time.monotonic() - start_s < limit_s
    assert "\n" not in str(caught.value)
    return caught.value


def check_goes_on(mesh, step, run, lost):
    """Until the restart the error comes again at once; after it, the checkpoint goes on as if nothing had been."""
    path, losses = run
    failure_of(lambda: step(initial_state(mesh), spinning_step.batch(), 0), PROMPT_S)
    failure_of(lambda: mesh.distributed(lambda x: x + 1)(np.ones(2)), PROMPT_S)
    assert mesh.restart() == lost
    assert mesh.restart() == ()
    state = jq.restore(path, like=initial_state(mesh))
    assert train(step, state, 3)[1] == losses


def check_does_not_count(mesh, run_eighth, run):
    """Work that takes longer than the heartbeat timeout does no harm.

    The timeout grows with the time of an eighth of the work, as a busy machine delays heartbeats too.
    """
    mesh.engine.monitor.timeout_s = timeout_s = max(LIMIT_S, 2 * time_of(run_eighth))
    assert time_of(run) > timeout_s


def time_of(run):
    start_s = time.monotonic()
    run()
    return time.monotonic() - start_s


def forward_only(batch, size=2):
    """Actor 0 is through when it has sent `size` numbers for each microbatch."""

    def outputs(x):
        made = (x @ jnp.ones((8, 8))).sum() + jnp.arange(float(size))  # Without a product the receiver would make it.
        return jnp.mean(jq.pipeline_yield(made))

    return jq.accumulate_grads(outputs, spinning_step.SCHEDULE, "stack")(batch)


# Killed and frozen.


@pytest.mark.parametrize(
    ("harm", "actor"),
    [(kill, 0), pytest.param(kill, 1, marks=SLOW), (freeze, 0), pytest.param(freeze, 1, marks=SLOW)],
    ids=["kill-computing", "kill-waiting", "freeze-computing", "freeze-waiting"],
)
def test_an_actor_is_lost_in_a_step(mesh, step, run, actor, harm):
    call_inside(mesh, actor, say, "the last line of the log")
    lost = process_id(mesh, actor)
    state, loss = step(initial_state(mesh), spinning_step.batch(), LONG if actor == 0 else LONG // 4)
    wait_for_activity(mesh, 0, "0F0")
    wait_for_activity(mesh, 1, "waiting for message 0 from actor 0")
    last = activity(mesh, actor)
    if harm is freeze:
        watch_closely(mesh)
    harm(mesh, actor)
    error = failure_of(lambda: float(loss), PROMPT_S)
    assert (error.actor, error.is_lost, error.task) == (actor, True, last)
    assert error.host.startswith(mesh.engine.group.workers[actor][0].info.host)
    assert "the last line of the log" in error.log
    assert "the last line of the log" in error.__notes__[0]
    # On a busy machine it is looked at more seldom.
    doing = f"running {last}" if actor == 0 else last
    how = "has died" if harm is kill else "has sent no heartbeat for [456] s"
    assert re.fullmatch(
        rf"actor {actor} on {re.escape(error.host)} {how} while {re.escape(doing)}\. Its state is lost: call "
        r"mesh\.restart\(\), and restore a checkpoint\.",
        str(error),
    )
    failure_of(lambda: jax.block_until_ready(state), PROMPT_S)
    wait_until(lambda: not is_running(lost))
    check_goes_on(mesh, step, run, (actor,))


def say(process, words):
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")")[-1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_others_stop_waiting(mesh, step):
    _, loss = step(initial_state(mesh), spinning_step.batch(), LONG)
    wait_for_activity(mesh, 0, "0F0")
    wait_for_activity(mesh, 1, "waiting")
    kill(mesh, 0)
    failure_of(lambda: float(loss), PROMPT_S)
    wait_until(lambda: activity(mesh, 1) == "idle", PROMPT_S)


def test_an_actor_that_is_lost_between_steps(mesh, step, run):
    state, loss = step(mesh.init(spinning_step.init, KEY, width=32), spinning_step.batch(32), 0)
    expected = float(loss)
    jax.block_until_ready(state)
    kill(mesh, 1)
    wait_until(lambda: mesh.engine.group.losses, PROMPT_S)
    assert float(loss) == expected, "it came with the reply"
    error = failure_of(lambda: step(state, spinning_step.batch(32), 0), PROMPT_S)
    assert (error.actor, error.task) == (1, "idle")
    assert not state["first"].is_deleted(), "a step that is refused takes nothing"
    check_goes_on(mesh, step, run, (1,))
    assert np.asarray(state["first"]).shape == (32, 32), "the other actor has its part still"
    with pytest.raises(MeshError) as caught:
        np.asarray(state["second"])
    assert str(caught.value) == (
        "this array was lost with the process of actor 1, which has been started again since. Restore it from a "
        "checkpoint: jq.restore(path, like=state)."
    )
    with pytest.raises(MeshError, match="this array was lost with the process of actor 1"):
        step(state, spinning_step.batch(32), 0)
    assert not state["first"].is_deleted()


@SLOW
def test_both_actors_are_lost(mesh, step, run):
    _, loss = step(initial_state(mesh), spinning_step.batch(), LONG)
    wait_for_activity(mesh, 0, "0F0")
    kill(mesh, 0)
    kill(mesh, 1)
    failure_of(lambda: float(loss), PROMPT_S)
    wait_until(lambda: len(mesh.engine.group.losses) == 2, PROMPT_S)
    check_goes_on(mesh, step, run, (0, 1))


def test_several_steps_are_queued(mesh, step, run):
    path, _ = run
    state = jq.restore(path, like=initial_state(mesh))
    results = []
    for rounds in (0, LONG, 0, 0):
        state, loss = step(state, spinning_step.batch(), rounds)
        results.append(loss)
    first = float(results[0])
    # The loss is there before the other actor's report is: a step counts as done when all have reported.
    finished = results[0].parts[0].copies[0].step
    wait_until(lambda: finished.is_finished)
    wait_for_activity(mesh, 1, "waiting")
    wait_for_activity(mesh, 0, "0F")
    kill(mesh, 0)
    for loss in results[1:]:
        assert failure_of(lambda loss=loss: float(loss), PROMPT_S).actor == 0
    assert float(results[0]) == first
    failure_of(lambda: np.asarray(state["second"]), PROMPT_S)
    check_goes_on(mesh, step, run, (0,))


@pytest.mark.slow
def test_the_time_of_a_long_task_does_not_count(mesh, step):
    def run(rounds):
        assert np.isfinite(float(step(initial_state(mesh), spinning_step.batch(), rounds)[1]))

    check_does_not_count(mesh, lambda: run(LONG // 8), lambda: run(LONG))


def test_a_sender_that_dies_after_its_part(mesh):
    """Actor 1 finds the connection closed before the monitor finds that actor 0 has died."""
    forward = mesh.distributed(functools.partial(forward_only, size=1 << 23))
    batch = np.ones((3, 2, 8), np.float32)
    np.asarray(forward(batch))
    freeze(mesh, 1)
    result = forward(batch)
    time.sleep(0.2)
    wait_for_activity(mesh, 0, "idle")
    kill(mesh, 0)
    os.kill(process_id(mesh, 1), signal.SIGCONT)
    error = failure_of(lambda: np.asarray(result))
    assert (error.actor, error.is_lost) == (0, True)


@SLOW
def test_steps_sent_while_an_actor_dies(mesh, step, run):
    """However the loss falls among them, each ends: with its numbers, or with the error."""
    for delay_s in (0.0, 0.02, 0.3):
        timer = threading.Timer(delay_s, kill, (mesh, 0))
        state, losses = initial_state(mesh), []
        timer.start()
        with contextlib.suppress(ActorFailed):
            while True:
                state, loss = step(state, spinning_step.batch(), 0)
                losses.append(loss)
        for loss in losses:
            with contextlib.suppress(ActorFailed):
                assert np.isfinite(float(loss))
        timer.join()
        assert mesh.restart() == (0,)


# While tasks are compiled.


@pytest.mark.filterwarnings("ignore:the step called at")  # It runs on one actor, and is meant to.
@pytest.mark.parametrize("harm", [kill, pytest.param(freeze, marks=SLOW)])
def test_an_actor_is_lost_while_it_compiles(mesh, step, run, harm):
    long_step = mesh.distributed(functools.partial(spinning_step.compiles_long, num_rounds=150))
    failures = []

    def compile_it():
        with pytest.raises(ActorFailed) as caught:
            long_step(np.ones((4, 4), np.float32))
        failures.append((caught.value, time.monotonic()))

    with InThread(compile_it):
        wait_for_activity(mesh, 0, "compiling before.0")
        if harm is freeze:
            watch_closely(mesh)
        harm(mesh, 0)
        harm_s = time.monotonic()
    error, end_s = failures[0]
    assert end_s - harm_s < PROMPT_S
    assert (error.actor, error.task) == (0, "compiling before.0")
    check_goes_on(mesh, step, run, (0,))
    assert np.isfinite(np.asarray(long_step(np.ones((4, 4), np.float32)))).all(), "it is compiled now"


@SLOW
@pytest.mark.filterwarnings("ignore:the step called at")
def test_the_time_of_a_long_compilation_does_not_count(mesh):
    def run(num_rounds):
        step = mesh.distributed(functools.partial(spinning_step.compiles_long, num_rounds=num_rounds))
        assert np.isfinite(np.asarray(step(np.ones((4, 4), np.float32)))).all()

    check_does_not_count(mesh, lambda: run(50), lambda: run(400))


# While a checkpoint is written.


def slow_writes(process):
    """Every write takes a minute, or until the process ends."""
    from jaxquard.runtime.checkpoint.files import write_pieces

    write_pieces.write_arrays = lambda folder, arrays: time.sleep(60)


@pytest.mark.parametrize("harm", [kill, pytest.param(freeze, marks=SLOW)])
def test_an_actor_is_lost_in_a_save(mesh, step, run, harm):
    path, _ = run
    state = jq.restore(path, like=initial_state(mesh))
    state, _ = train(step, state, 1)
    call_inside(mesh, 1, slow_writes)
    saving = jq.save(path, state)
    wait_until(lambda: any(found.name.startswith(".last.saving") for found in path.parent.iterdir()))
    if harm is freeze:
        watch_closely(mesh)
    harm(mesh, 1)
    error = failure_of(saving.wait)
    assert error.actor == 1
    assert failure_of(saving.wait, PROMPT_S).actor == 1
    assert names_in(path.parent) == ["last"]
    check_goes_on(mesh, step, run, (1,))


# Errors that leave the process alive.


def needs_a_terabyte(x):
    return jax.lax.sort(jax.lax.iota(jnp.float32, 1 << 38) * x[0])[:2]


def test_a_task_that_runs_out_of_memory(mesh, step):
    large = mesh.distributed(needs_a_terabyte)
    processes = [process_id(mesh, actor) for actor in (0, 1)]
    before = step(initial_state(mesh), spinning_step.batch(), 0)
    x = np.ones(2, np.float32)
    error = failure_of(lambda: np.asarray(large(x)))
    assert not error.is_lost
    assert str(error) == (
        f"task before.0 failed on actor 0 on {error.host}: RESOURCE_EXHAUSTED: Out of memory allocating 1099511627776 "
        "bytes. Nothing was donated: the inputs are intact."
    )
    state, loss = step(before[0], spinning_step.batch(), 0)
    assert np.isfinite(float(loss))
    failure_of(lambda: np.asarray(large(x)))
    state, loss = step(state, spinning_step.batch(), 0)
    assert np.isfinite(float(loss))
    assert mesh.restart() == ()
    assert processes == [process_id(mesh, actor) for actor in (0, 1)]


@pytest.mark.parametrize(("task", "actor"), [("0F1", 0), ("1FB0", 1)])
def test_a_task_that_fails(mesh, step, task, actor):
    state, _ = step(initial_state(mesh), spinning_step.batch(), 0)
    expected = jax.device_get(state)
    call_inside(mesh, actor, fail_in, task)
    after, loss = step(state, spinning_step.batch(), 0)
    error = failure_of(lambda: float(loss))
    assert not error.is_lost
    assert str(error) == (
        f"task {task} failed on actor {actor} on {error.host}: out of ink. Nothing was donated: the inputs are intact."
    )
    assert "ValueError: out of ink" in error.__cause__.__notes__[0]
    assert (error.actor, error.task) == (actor, task)
    assert "ValueError: out of ink" in error.log
    failure_of(lambda: np.asarray(after["first"]), PROMPT_S)
    for name in expected:
        np.testing.assert_array_equal(state[name], expected[name])
    state, loss = step(state, spinning_step.batch(), 0)
    assert np.isfinite(float(loss))


def test_a_task_that_fails_when_another_actor_is_through(mesh, step, tmp_path):
    state, _ = step(initial_state(mesh), spinning_step.batch(), 0)
    expected = jax.device_get(state)
    call_inside(mesh, 0, fail_in, "after.0", str(tmp_path / "now"))
    after, _ = step(state, spinning_step.batch(), 0)
    jax.block_until_ready(after["second"])
    (tmp_path / "now").touch()
    error = failure_of(lambda: jax.block_until_ready(after))
    assert str(error) == (
        f"task after.0 failed on actor 0 on {error.host}: out of ink. The donated state was consumed; restore it from "
        "a checkpoint."
    )
    np.testing.assert_array_equal(state["first"], expected["first"])
    with pytest.raises(DeletedArrayError):
        np.asarray(state["second"])
    with pytest.raises(DeletedArrayError):
        step(state, spinning_step.batch(), 0)


def test_two_tasks_fail_and_the_next_step_does_not(mesh, tmp_path):
    """Its first failure ends an epoch; the second, seen when the next step is under way, must not end the next one."""
    forward = mesh.distributed(forward_only)
    batch = np.ones((3, 2, 8), np.float32)
    expected = np.asarray(forward(batch))
    call_inside(mesh, 0, fail_in, "0F2", str(tmp_path / "later"))
    call_inside(mesh, 1, fail_in, "1F0", str(tmp_path / "now"))
    bad = forward(batch)
    wait_for_activity(mesh, 0, "0F2")
    wait_for_activity(mesh, 1, "1F0")
    (tmp_path / "now").touch()
    wait_until(lambda: mesh.engine._epochs.current is None)
    good = forward(batch)
    (tmp_path / "later").touch()
    np.testing.assert_array_equal(good, expected)
    failure_of(bad.block_until_ready)
    np.testing.assert_array_equal(forward(batch), expected)


class InThread:
    """Runs a function beside the block, and waits for it."""

    def __init__(self, function):
        self._thread = threading.Thread(target=function)

    def __enter__(self):
        self._thread.start()

    def __exit__(self, *_):
        self._thread.join()
