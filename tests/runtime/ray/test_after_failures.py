"""The state after a failure, an interruption or a close: nobody hangs, and the right error is raised."""

import time

import jax
import numpy as np
import pytest

import jaxquard as jq
from jaxquard.errors import ActorFailed
from jaxquard.runtime.ray.controller import engine as engine_module
from tests.runtime.ray import spinning_step
from tests.runtime.ray.processes import call_inside, kill, wait_until
from tests.runtime.ray.spoil import fail_in, mend

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def started():
    with jq.RemoteMesh((2,), runtime="ray", heartbeat_timeout_s=30) as mesh:
        yield mesh


@pytest.fixture
def mesh(started):
    started.restart()
    for actor in range(2):
        call_inside(started, actor, mend)
    return started


@pytest.fixture(scope="module")
def step(started):
    return started.distributed(spinning_step.train_step, donate_argnums=0)


@pytest.fixture(scope="module")
def first_loss(started, step):
    return one_loss(started, step)


def one_loss(mesh, step):
    return float(step(mesh.init(spinning_step.init, KEY), spinning_step.batch(), 0)[1])


def test_a_step_on_the_results_of_a_failed_step_says_so(mesh, step, first_loss, tmp_path):
    """One actor had ended its part well, and would wait for the other for ever."""
    state, _ = jax.block_until_ready(step(mesh.init(spinning_step.init, KEY), spinning_step.batch(), 0))
    call_inside(mesh, 0, fail_in, "after.0", str(tmp_path / "now"))
    failed, _ = step(state, spinning_step.batch(), 0)
    jax.block_until_ready(failed["second"])
    (tmp_path / "now").touch()
    with pytest.raises(ActorFailed, match=r"task after\.0 failed on actor 0"):
        jax.block_until_ready(failed)
    with pytest.raises(ActorFailed, match=r"task after\.0 failed on actor 0"):
        float(step(failed, spinning_step.batch(), 0)[1])
    call_inside(mesh, 0, mend)
    assert one_loss(mesh, step) == first_loss


def test_a_step_that_is_sent_as_soon_as_a_failure_is_reported(mesh, step, first_loss, monkeypatch, tmp_path):
    """By then the epoch of the failed step has ended: the next step is not given up with it."""
    state, other = jax.block_until_ready([mesh.init(spinning_step.init, KEY) for _ in range(2)])
    call_inside(mesh, 0, fail_in, "after.0", str(tmp_path / "now"))
    failed, _ = step(state, spinning_step.batch(), 0)
    jax.block_until_ready(failed["second"])
    end = mesh.engine._epochs.end
    monkeypatch.setattr(mesh.engine._epochs, "end", lambda *args: time.sleep(0.5) or end(*args))
    (tmp_path / "now").touch()
    with pytest.raises(ActorFailed, match=r"task after\.0 failed on actor 0"):
        jax.block_until_ready(failed["first"])
    # It computes for a while: in the epoch that ends it would not get through.
    assert float(step(other, spinning_step.batch(), 40_000)[1]) == first_loss


def test_a_failure_that_is_known_just_before_a_step_is_sent(mesh, step, first_loss, monkeypatch, tmp_path):
    state, _ = jax.block_until_ready(step(mesh.init(spinning_step.init, KEY), spinning_step.batch(), 0))
    call_inside(mesh, 0, fail_in, "0F1", str(tmp_path / "now"))
    failed, _ = step(state, spinning_step.batch(), 0)
    take_donated = engine_module.take_donated

    def slow(*args):
        taken = take_donated(*args)
        (tmp_path / "now").touch()
        wait_until(lambda: mesh.engine._epochs.current is None)
        return taken

    monkeypatch.setattr(engine_module, "take_donated", slow)
    with pytest.raises(ActorFailed, match="task 0F1 failed"):
        float(step(failed, spinning_step.batch(), 0)[1])
    monkeypatch.undo()
    call_inside(mesh, 0, mend)
    assert one_loss(mesh, step) == first_loss


def test_a_restart_that_is_interrupted_can_be_made_up_for(mesh, step, first_loss, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    kill(mesh, 0)
    wait_until(lambda: mesh.engine.group.losses)
    monkeypatch.setattr(engine_module, "send_code", interrupt)
    with pytest.raises(KeyboardInterrupt):
        mesh.restart()
    monkeypatch.undo()
    mesh.restart()
    assert one_loss(mesh, step) == first_loss


def test_a_call_that_is_interrupted_while_it_is_sent_holds_up_nobody(mesh, step, first_loss, monkeypatch, tmp_path):
    state, _ = step(mesh.init(spinning_step.init, KEY), spinning_step.batch(), 0)
    jax.block_until_ready(state)
    handle = mesh.engine.group.workers[1][0].handle

    def interrupt(*_):
        raise KeyboardInterrupt

    for method in ("save", "step"):
        getattr(handle, method)
        monkeypatch.setitem(handle.__dict__, method, interrupt)
        with pytest.raises(KeyboardInterrupt):
            jq.save(tmp_path / "a", state) if method == "save" else step(state, spinning_step.batch(), 0)
        monkeypatch.undo()
    assert one_loss(mesh, step) == first_loss


def test_an_error_of_the_progress_bar_is_the_users_own(mesh):
    def on_progress(done, total, name):
        raise ValueError("no ink")

    step = mesh.distributed(lambda x: x * 3.0, progress=on_progress)
    with pytest.raises(ValueError, match="no ink"):
        step(np.ones(2, np.float32))


def test_a_mesh_that_is_closed_during_a_save_finishes_it(tmp_path):
    state = {"w": np.random.default_rng(0).normal(size=(4, 2**20)).astype(np.float32)}
    with jq.RemoteMesh((1,), runtime="ray") as mesh:
        held = mesh.distributed(lambda state: jax.tree.map(lambda w: w + 0.0, state))(state)
        saving = jq.save(tmp_path / "a", held)
    saving.wait()
    np.testing.assert_array_equal(jq.restore(tmp_path / "a", like=state)["w"], state["w"])


def test_a_task_that_fails_between_collectives_is_named_and_all_start_again():
    with jq.RemoteMesh((2,), runtime="ray", transport="collective", heartbeat_timeout_s=30) as mesh:
        step = mesh.distributed(spinning_step.train_step)
        loss = one_loss(mesh, step)
        call_inside(mesh, 1, fail_in, "1FB1")
        with pytest.raises(ActorFailed, match="task 1FB1 failed on actor 1") as caught:
            one_loss(mesh, step)
        assert caught.value.is_lost or mesh.engine.group.losses
        assert mesh.restart() == (0, 1)
        assert one_loss(mesh, step) == loss
