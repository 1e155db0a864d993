"""Checkpoints of state that other processes hold: saved while steps go on, restored anywhere."""

import shutil
import socket

import jax
import numpy as np
import pytest

import jaxquard as jq
from jaxquard.errors import CheckpointError, CheckpointWarning, DamagedCheckpointError, DeletedArrayError
from jaxquard.runtime.checkpoint import save as save_module
from tests.runtime.checkpoint.damage import DAMAGES, flip_bit
from tests.runtime.checkpoint.listing import names_in
from tests.runtime.checkpoint.training import bits, distribute, init_state, make_batch, train
from tests.runtime.ray.processes import call_inside

pytest.importorskip("ray")
pytestmark = pytest.mark.ray

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def mesh(shared_meshes):
    return shared_meshes["wide"]


@pytest.fixture(scope="module")
def step(mesh):
    return distribute(mesh, 2)


@pytest.fixture(scope="module")
def run(mesh, step, tmp_path_factory):
    """A checkpoint after two steps, the state then as bits, and the losses of three more steps."""
    path = tmp_path_factory.mktemp("run") / "last"
    state, _ = train(step, mesh.init(init_state, KEY), 2)
    expected = bits(state)
    saving = jq.save(path, state)
    state, losses = train(step, state, 3)
    saving.wait()
    return path, expected, losses, state


def assert_same(found, expected):
    np.testing.assert_array_equal(np.stack(found), np.stack(expected))


def test_into_the_same_places(mesh, step, run):
    path, expected, losses, after = run
    state = jq.restore(path, like=after)
    assert bits(state) == expected
    for found, like in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        assert found.placement == like.placement
    assert_same(train(step, state, 3)[1], losses)


def test_into_initial_state(mesh, step, run):
    path, _, losses, _ = run
    assert_same(train(step, jq.restore(path, like=mesh.init(init_state, KEY)), 3)[1], losses)


def test_into_plain_arrays(run):
    path, expected, _, _ = run
    state = jq.restore(path, like=jax.jit(init_state)(KEY))
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
    assert bits(state) == expected


def test_into_actors_of_this_process_and_back(mesh, step, run, tmp_path):
    path, expected, losses, _ = run
    with jq.RemoteMesh((4,), spmd_mesh=(1, 2), spmd_axis_names=("data", "model")) as other:
        state = jq.restore(path, like=other.init(init_state, KEY))
        other_step = distribute(other, 4)
        state, found = train(other_step, state, 3)
        np.testing.assert_allclose(np.stack(found), np.stack(losses), rtol=1e-5)
        state = jq.restore(path, like=state)
        assert bits(state) == expected
        jq.save(tmp_path / "back", state).wait()
    state = jq.restore(tmp_path / "back", like=mesh.init(init_state, KEY))
    assert_same(train(step, state, 3)[1], losses)


@pytest.mark.slow
def test_into_more_actors(run):
    path, expected, losses, _ = run
    with jq.RemoteMesh((4,), spmd_mesh=(1,), spmd_axis_names=("model",), runtime="ray") as other:
        state, found = train(distribute(other, 4), jq.restore(path, like=other.init(init_state, KEY)), 3)
        np.testing.assert_allclose(np.stack(found), np.stack(losses), rtol=1e-5)
        assert len(state["params"]["layers"].parts) == 4
        assert bits(jq.restore(path, like=state)) == expected


def hold_writes(process):
    """Nothing is written before `release_writes`."""
    import threading

    from jaxquard.runtime.checkpoint.files import write_pieces

    gate, write = threading.Event(), write_pieces.write_arrays

    def wait(folder, arrays):
        assert gate.wait(60)
        write(folder, arrays)

    write_pieces.write_arrays = wait
    process.release = lambda: (gate.set(), setattr(write_pieces, "write_arrays", write))


def test_steps_take_what_is_being_saved(mesh, step, run, tmp_path):
    path, expected, losses, after = run
    state = jq.restore(path, like=after)
    for actor in (0, 1):
        call_inside(mesh, actor, hold_writes)
    try:
        saving = jq.save(tmp_path / "a", state)
        taken = state
        state, found = train(step, state, 3)
        assert taken["params"]["head"].is_deleted()
        assert not saving.is_done()
    finally:
        for actor in (0, 1):
            call_inside(mesh, actor, lambda process: process.release() and None)
    saving.wait()
    assert_same(found, losses)
    assert bits(jq.restore(tmp_path / "a", like=after)) == expected
    with pytest.raises(DeletedArrayError, match="cannot be saved: it was donated to an earlier step"):
        jq.save(tmp_path / "b", taken)
    assert names_in(tmp_path) == ["a"]


def test_a_save_after_queued_steps_has_their_results(mesh, step, run, tmp_path):
    path, _, _, after = run
    state = jq.restore(path, like=after)
    for _ in range(3):
        state, _ = step(state, make_batch())
    saving = jq.save(tmp_path / "a", state)
    expected = bits(state)
    saving.wait()
    assert bits(jq.restore(tmp_path / "a", like=after)) == expected


def test_a_folder_that_goes_away(mesh, run, tmp_path):
    _, _, _, after = run
    jq.save(tmp_path / "a", after).wait()
    (tmp_path / "a" / "jaxquard.json").rename(tmp_path / "jaxquard.json")
    with pytest.raises(CheckpointError, match="is not a whole checkpoint"):
        jq.restore(tmp_path / "a", like=after)
    (tmp_path / "jaxquard.json").rename(tmp_path / "a" / "jaxquard.json")
    late = jq.restore(tmp_path / "a", like=mesh.init(init_state, KEY))
    (tmp_path / "a").rename(tmp_path / "b")
    with pytest.raises(CheckpointError, match="is not there any more, or not seen from"):
        np.asarray(late["params"]["head"])


def test_damage_is_found_by_the_actors(mesh, run, tmp_path):
    path, expected, _, after = run
    for number, (kind, spoil) in enumerate(DAMAGES.items()):
        damaged = tmp_path / str(number)
        shutil.copytree(path, damaged)
        spoil(damaged, np.random.default_rng(number))
        with pytest.raises(DamagedCheckpointError) as caught:
            jq.restore(damaged, like=after)
        assert "\n" not in str(caught.value), kind
        with pytest.raises(DamagedCheckpointError):
            jq.verify(damaged)
    assert jq.verify(path).num_pieces > 10
    assert bits(jq.restore(path, like=after)) == expected


def test_the_checkpoint_before_a_damaged_one(mesh, step, run, tmp_path):
    path, _, losses, after = run
    with jq.Checkpoints(tmp_path, every=1) as checkpoints:
        checkpoints.after_step(2, jq.restore(path, like=after))
        state, _ = train(step, jq.restore(path, like=after), 1)
        checkpoints.after_step(3, state)
        checkpoints.wait()
        flip_bit(checkpoints.path(3), np.random.default_rng(0))
        with pytest.warns(CheckpointWarning, match="step 3 is not restored, an earlier step is"):
            number, state = checkpoints.restore(like=mesh.init(init_state, KEY))
        assert number == 2
        assert_same(train(step, state, 3)[1], losses)


def test_a_disk_that_is_full_on_an_actor(mesh, small_disk, monkeypatch):
    small = mesh.distributed(lambda x: x + 1)(np.zeros(4, np.float32))
    jq.save(small_disk / "a", {"x": small}).wait()
    random = np.random.default_rng(0).normal(size=1 << 20).astype(np.float32)
    large = mesh.distributed(lambda x: x + 1)(random)
    monkeypatch.setattr(save_module, "check_space", lambda *_: None)
    saving = jq.save(small_disk / "a", {"x": large})
    with pytest.raises(CheckpointError) as caught:
        saving.wait()
    assert str(caught.value).startswith(f"the disk is full on {socket.gethostname()}: {small_disk} has ")
    assert names_in(small_disk) == ["a"]
    np.testing.assert_array_equal(jq.restore(small_disk / "a", like={"x": small})["x"], np.ones(4))
