"""`jq.Checkpoints`: steps, the last whole one, the ones that are kept, and SIGTERM."""

import os
import shutil
import signal
import subprocess
import sys
import threading

import jax.numpy as jnp
import numpy as np
import pytest

import jaxquard as jq
from jaxquard.errors import (
    PREEMPTED_EXIT_CODE,
    CheckpointError,
    CheckpointOwnedError,
    CheckpointWarning,
    DamagedCheckpointError,
    Preempted,
    StaleOwnerError,
)
from jaxquard.runtime.checkpoint.checkpoints import Checkpoints
from jaxquard.runtime.checkpoint.files import write_pieces
from jaxquard.runtime.checkpoint.files.ownership.claims import CLAIMS, Claims, OwnedPath
from tests.runtime.checkpoint.damage import DAMAGES, flip_bit, remove_file
from tests.runtime.checkpoint.listing import names_in
from tests.runtime.checkpoint.subprocesses import PROLOGUE, environment

LIKE = {"x": np.zeros(2000)}


def state(step):
    return {"x": np.full(2000, float(step)) + np.arange(2000)}


def is_of(found, step):
    return np.array_equal(found["x"], state(step)["x"])


@pytest.fixture
def checkpoints(tmp_path):
    with Checkpoints(tmp_path / "runs", keep=3, every=10) as checkpoints:
        yield checkpoints


def fill(checkpoints, *steps):
    for step in steps:
        checkpoints.save(step, state(step)).wait()


def test_steps_are_saved_and_pruned(checkpoints):
    assert checkpoints.restore(like=LIKE) == (0, LIKE)
    assert checkpoints.latest is None
    assert checkpoints.steps == ()
    for step in range(1, 56):
        checkpoints.after_step(step, state(step))
    checkpoints.wait()
    assert checkpoints.steps == (30, 40, 50)
    assert checkpoints.latest == 50
    assert names_in(checkpoints.folder) == ["step-00000030", "step-00000040", "step-00000050"]
    step, found = checkpoints.restore(like=LIKE)
    assert step == 50
    assert is_of(found, 50)
    step, found = checkpoints.restore(like=LIKE, step=40)
    assert is_of(found, 40)
    assert repr(checkpoints) == f"Checkpoints('{checkpoints.folder}', keep=3, every=10)"
    with pytest.raises(CheckpointError, match="there is no checkpoint at"):
        checkpoints.restore(like=LIKE, step=20)


def test_arguments_that_are_wrong(tmp_path):
    for name, value in {"keep": 0, "every": -1, "max_pending": True}.items():
        with pytest.raises(CheckpointError, match=f"{name} must be a whole number above 0, but is {value}"):
            Checkpoints(tmp_path, **{name: value})


@pytest.mark.parametrize("step", [5.0, np.float32(5), -5, "5", None, 10**18], ids=repr)
def test_steps_that_would_not_be_found_again_are_refused(tmp_path, step):
    checkpoints = Checkpoints(tmp_path, every=5)
    for refused in (checkpoints.after_step, checkpoints.save):
        with pytest.raises(CheckpointError, match="step must be a whole number, 0 or more, but is"):
            refused(step, state(5))
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("step", [np.int64(5), jnp.int32(5)], ids=["numpy", "jax"])
def test_a_step_may_be_an_array(tmp_path, step):
    with Checkpoints(tmp_path, every=5) as checkpoints:
        checkpoints.after_step(step, state(5))
    assert checkpoints.steps == (5,)


@pytest.mark.thin(2)
@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_last_one_is_not_restored(checkpoints, kind):
    leaves = {name: np.random.default_rng(number).normal(size=2000) for number, name in enumerate("abc")}
    for step in (10, 20):
        checkpoints.save(step, leaves | {"step": step}).wait()
    DAMAGES[kind](checkpoints.path(20), np.random.default_rng(1))
    with pytest.warns(CheckpointWarning, match="step 20 is not restored, an earlier step is: .*step-00000020"):
        step, found = checkpoints.restore(like=leaves | {"step": 0})
    assert step == found["step"] == 10
    checkpoints.save(20, leaves | {"step": 20}).wait()
    assert names_in(checkpoints.folder) == ["step-00000010", "step-00000020", "step-00000020.abandoned"]
    assert checkpoints.restore(like=leaves | {"step": 0})[1]["step"] == 20


def test_damage_is_found_before_the_first_step_reads(checkpoints):
    fill(checkpoints, 10, 20)
    flip_bit(checkpoints.path(20), np.random.default_rng(0))
    with jq.RemoteMesh((1,)) as mesh:
        like = {"x": mesh.init(lambda: jnp.zeros(2000))}
        wide = {"x": np.zeros(2000, np.float32)}
        checkpoints.save(30, wide).wait()
        flip_bit(checkpoints.path(30), np.random.default_rng(0))
        checkpoints.save(40, wide).wait()
        flip_bit(checkpoints.path(40), np.random.default_rng(0))
        with (
            pytest.warns(CheckpointWarning),
            pytest.raises(DamagedCheckpointError, match="None of the 3 checkpoints is"),
        ):
            checkpoints.restore(like=like)
        checkpoints.restore(like=like, verify_first=False)


def test_all_are_damaged(checkpoints):
    fill(checkpoints, 10)
    remove_file(checkpoints.path(10), np.random.default_rng(0))
    with pytest.raises(DamagedCheckpointError) as caught:
        checkpoints.restore(like=LIKE)
    assert "None of" not in str(caught.value)


def test_another_state_is_no_damage(checkpoints):
    fill(checkpoints, 10, 20)
    with pytest.raises(CheckpointError, match="is of another state"):
        checkpoints.restore(like={"y": np.zeros(3)})


def test_the_only_whole_one_is_kept(tmp_path):
    with Checkpoints(tmp_path, keep=1, every=10) as checkpoints:
        fill(checkpoints, 10)
        shutil.copytree(checkpoints.path(10), tmp_path / "step-00000020")
        (tmp_path / "step-00000020" / "jaxquard.json").write_text("{")
        assert checkpoints.steps == (10, 20)
        assert checkpoints.latest == 10
        checkpoints._prune()
        assert checkpoints.steps == (10, 20)
        fill(checkpoints, 30)
        assert checkpoints.steps == (30,)


def test_a_training_that_goes_back_keeps_what_it_leaves(checkpoints):
    fill(checkpoints, 10, 20, 30)
    with pytest.raises(CheckpointError, match=r"step 15 cannot follow step 30 in .*\. Begin with Checkpoints\.restore"):
        checkpoints.save(15, state(15))
    checkpoints.restore(like=LIKE, step=10)
    fill(checkpoints, 15)
    assert checkpoints.steps == (10, 15)
    assert names_in(checkpoints.folder)[2:] == ["step-00000020.abandoned", "step-00000030.abandoned"]


def test_a_training_that_forgets_to_restore_deletes_nothing(tmp_path):
    with Checkpoints(tmp_path, keep=1) as first:
        fill(first, 1000)
    with Checkpoints(tmp_path, keep=1) as second:
        with pytest.raises(CheckpointError, match="step 10 cannot follow step 1000"):
            second.save(10, state(10))
        assert second.steps == (1000,)


def test_pending_saves_are_bounded(tmp_path, monkeypatch):
    gate, original = threading.Event(), write_pieces.write_arrays
    started = []

    def wait(folder, arrays):
        started.append(folder)
        assert gate.wait(60)
        original(folder, arrays)

    monkeypatch.setattr(write_pieces, "write_arrays", wait)
    with Checkpoints(tmp_path, max_pending=2) as checkpoints:
        checkpoints.save(1, state(1))
        checkpoints.save(2, state(2))
        timer = threading.Timer(0.3, gate.set)
        timer.start()
        checkpoints.save(3, state(3))
        assert gate.is_set(), "it waited for the first"
        timer.join()
    assert checkpoints.steps == (1, 2, 3)
    assert len(started) == 3


def test_a_save_that_fails_is_raised_by_a_later_step(checkpoints, monkeypatch):
    def fail(folder, arrays):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(write_pieces, "write_arrays", fail)
        saving = checkpoints.save(10, state(10))
        with pytest.raises(CheckpointError):
            saving.wait()
    with pytest.raises(CheckpointError, match="Permission denied"):
        checkpoints.after_step(11, state(11))
    checkpoints.after_step(12, state(12))
    assert checkpoints.restore(like=LIKE) == (0, LIKE)


def test_a_folder_has_one_owner(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        fill(checkpoints, 1)
        other = OwnedPath(path=tmp_path, folder=tmp_path, prefix=".owner-", last_fence=lambda: 0)
        with pytest.raises(CheckpointOwnedError, match="belongs to process"):
            Claims().take(other)
        (tmp_path / ".owner-1").rename(tmp_path / ".owner-2")
        with pytest.raises(StaleOwnerError):
            checkpoints.save(2, state(2))
        assert checkpoints.steps == (1,)
        (tmp_path / ".owner-2").rename(tmp_path / ".owner-1")
    assert names_in(tmp_path) == sorted(os.listdir(tmp_path)) == ["step-00000001"]
    assert CLAIMS.take(other).fence == 1


def test_what_a_dead_program_left_is_removed(tmp_path):
    (tmp_path / ".step-00000005.saving-abc").mkdir()
    with Checkpoints(tmp_path, every=10) as checkpoints:
        checkpoints.after_step(1, state(1))
        assert names_in(tmp_path) == []


# Preemption.


def test_sigterm_saves_and_ends(tmp_path):
    earlier = signal.getsignal(signal.SIGTERM)

    def train():
        with Checkpoints(tmp_path, every=100) as checkpoints:
            for step in range(1, 10):
                assert checkpoints.is_preempted is (step == 5)
                checkpoints.after_step(step, state(step))
                if step == 4:
                    os.kill(os.getpid(), signal.SIGTERM)
                    os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Preempted) as caught:
        train()
    assert caught.value.code == PREEMPTED_EXIT_CODE == 75
    assert caught.value.step == 5
    # The program ends with its code, whatever else comes.
    assert signal.signal(signal.SIGTERM, earlier) == signal.SIG_IGN
    step, found = Checkpoints(tmp_path).restore(like=LIKE)
    assert step == 5
    assert is_of(found, 5)


def test_handlers_of_others_are_called_but_do_not_end_the_program(tmp_path, monkeypatch):
    called = []

    def end(number, frame):
        called.append(number)
        sys.exit(1)

    earlier = signal.signal(signal.SIGTERM, end)
    try:
        with Checkpoints(tmp_path, every=100) as checkpoints:
            checkpoints.after_step(1, state(1))
            signal.signal(signal.SIGTERM, end)  # As a library does that starts later.
            checkpoints.after_step(2, state(2))
            os.kill(os.getpid(), signal.SIGTERM)
            assert called == [signal.SIGTERM]
            with pytest.raises(Preempted):
                checkpoints.after_step(3, state(3))
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, earlier)


def test_one_that_is_not_closed_leaves_no_handler(tmp_path):
    earlier = signal.getsignal(signal.SIGTERM)
    checkpoints = Checkpoints(tmp_path)
    assert signal.getsignal(signal.SIGTERM) != earlier
    del checkpoints
    assert signal.getsignal(signal.SIGTERM) == earlier


def test_in_another_thread_there_is_no_handler(tmp_path):
    earlier = signal.getsignal(signal.SIGTERM)
    found = []

    def run():
        with Checkpoints(tmp_path, every=1) as checkpoints:
            checkpoints.after_step(1, state(1))
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [earlier]


def test_a_second_sigterm_does_not_disturb_the_end(tmp_path):
    ended = []

    def train():
        with Checkpoints(tmp_path):
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                signal.raise_signal(signal.SIGTERM)
                ended.append(True)

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(Preempted):
            train()
        assert ended == [True]
    finally:
        signal.signal(signal.SIGTERM, before)


def close_in_a_thread(checkpoints):
    thread = threading.Thread(target=checkpoints.close)
    thread.start()
    thread.join()


def close_before_a_later_one(checkpoints):
    later = Checkpoints(checkpoints.folder)
    checkpoints.close()
    later.close()


@pytest.mark.parametrize("close", [close_in_a_thread, close_before_a_later_one])
def test_one_that_is_closed_elsewhere_swallows_no_signal(tmp_path, monkeypatch, close):
    came = []
    before = signal.signal(signal.SIGTERM, lambda *_: came.append("earlier"))
    try:
        checkpoints = Checkpoints(tmp_path, every=1)
        checkpoints.after_step(1, state(1))
        close(checkpoints)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert came == ["earlier", "earlier"]
        assert not checkpoints.is_preempted
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        checkpoints = Checkpoints(tmp_path, every=1)
        checkpoints.after_step(2, state(2))
        close(checkpoints)
        monkeypatch.setattr("os.kill", lambda _, number: came.append(number))
        if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
            signal.raise_signal(signal.SIGTERM)
            assert came[2:] == [signal.SIGTERM]
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_closed_one_below_a_later_one_decides_nothing(tmp_path):
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        first = Checkpoints(tmp_path / "first")
        with Checkpoints(tmp_path / "second", every=10) as second:
            first.close()
            second.after_step(1, state(1))
            signal.raise_signal(signal.SIGTERM)
            assert second.is_preempted
    finally:
        signal.signal(signal.SIGTERM, before)


SCRIPT = """
import sys, time
from jaxquard.runtime.checkpoint.checkpoints import Checkpoints
try:
    checkpoints = Checkpoints({folder!r}, every=10**6)
    print("ready", flush=True)
    for step in range(1, 10**6):
        if {steps}: checkpoints.after_step(step, {{"x": np.full(2000, float(step)) + np.arange(2000)}})
        time.sleep(0.01)
        if step == 5: print("five", flush=True)
finally:
    print("finally", flush=True)
"""


@pytest.mark.parametrize("steps", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_program_that_is_preempted_ends_with_its_code(tmp_path, steps):
    """Its `finally` runs; before the first step there is nothing to save."""
    script = PROLOGUE + SCRIPT.format(folder=str(tmp_path), steps=steps)
    with subprocess.Popen(
        [sys.executable, "-c", script], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert [process.stdout.readline() for _ in range(2)] == ["ready\n", "five\n"]
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (75, "finally\n"), err
    assert "Traceback" not in err
    step, found = Checkpoints(tmp_path).restore(like=LIKE)
    assert step > 5 if steps else step == 0
    assert is_of(found, step) if steps else found is LIKE


def test_a_file_where_the_folder_should_be(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="should be a folder of checkpoints, but is a file"):
        Checkpoints(tmp_path / "file").restore(like=LIKE)
