"""A training that is saved, goes on, is restored and goes on again: the same bits as one that was not disturbed."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxquard as jq
from jaxquard.errors import CheckpointError, DeletedArrayError
from jaxquard.runtime.checkpoint.files import read_pieces
from jaxquard.runtime.checkpoint.files.manifest import Manifest
from jaxquard.runtime.checkpoint.files.regions import Region
from jaxquard.runtime.checkpoint.restore import restore
from jaxquard.runtime.checkpoint.save import save
from tests.runtime.checkpoint.training import bits, distribute, init_state, make_batch, train

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def mesh():
    with jq.RemoteMesh((2,), spmd_mesh=(2,), spmd_axis_names=("model",)) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def step(mesh):
    return distribute(mesh, 2)


@pytest.fixture(scope="module")
def run(mesh, step, tmp_path_factory):
    """A checkpoint after two steps, the state then as bits, and the losses of three more steps."""
    path = tmp_path_factory.mktemp("run") / "last"
    state, _ = train(step, mesh.init(init_state, KEY), 2)
    saving = save(path, state)
    expected = bits(state)
    state, losses = train(step, state, 3)
    saving.wait()
    return path, expected, losses, state


def assert_same(found, expected):
    np.testing.assert_array_equal(np.stack(found), np.stack(expected))


def test_into_the_same_places(step, mesh, run):
    path, expected, losses, after = run
    state = restore(path, like=after, mesh=mesh)
    assert bits(state) == expected
    for found, like in zip(jax.tree.leaves(state), jax.tree.leaves(after), strict=True):
        assert found.placement == like.placement
    assert_same(train(step, state, 3)[1], losses)


def test_into_places_whose_values_are_gone(step, mesh, run):
    path, _, losses, after = run
    taken, _ = train(step, restore(path, like=after, mesh=mesh), 1)
    step(taken, make_batch())
    with pytest.raises(DeletedArrayError):
        taken["params"]["head"].fetch()
    assert_same(train(step, restore(path, like=taken, mesh=mesh), 3)[1], losses)


def test_into_initial_state_that_no_step_has_taken(step, mesh, run):
    path, expected, losses, after = run
    for like in (mesh.init(init_state, KEY), jax.eval_shape(init_state, KEY)):
        state = restore(path, like=like, mesh=mesh)
        assert not any(leaf.is_placed for leaf in jax.tree.leaves(state))
        assert repr(state["params"]["head"]) == "RemoteArray(float32[4,6], not placed yet)"
        assert bits({"key": state["key"]}) == {"key": expected["key"]}, "read whole, before any step"
        state, found = train(step, state, 3)
        assert_same(found, losses)
        assert state["params"]["layers"].placement == after["params"]["layers"].placement


def test_into_more_actors_and_another_mesh(run):
    path, expected, losses, _ = run
    with jq.RemoteMesh((4,), spmd_mesh=(1, 2), spmd_axis_names=("data", "model")) as mesh:
        state = restore(path, like=mesh.init(init_state, KEY))
        state, found = train(distribute(mesh, 4), state, 3)
        np.testing.assert_allclose(np.stack(found), np.stack(losses), rtol=1e-5)
        assert len(state["params"]["layers"].parts) == 4
        again = restore(path, like=state, mesh=mesh)
        assert bits(again) == expected
        assert again["params"]["layers"].placement == state["params"]["layers"].placement
        assert save(path.with_name("wide"), again).wait() is None
        assert bits(restore(path.with_name("wide"), like=jax.eval_shape(init_state, KEY))) == expected


def test_into_plain_arrays(run):
    path, expected, _, _ = run
    state = restore(path, like=jax.jit(init_state)(KEY))
    assert all(isinstance(leaf, jax.Array) and not leaf.committed for leaf in jax.tree.leaves(state))
    assert bits(state) == expected
    as_numpy = restore(path, like={**state, "params": jax.tree.map(np.asarray, state["params"])})
    assert isinstance(as_numpy["params"]["head"], np.ndarray)
    as_numpy["params"]["head"] += 1


def test_into_arrays_with_a_sharding(run):
    path, expected, _, _ = run
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("x", "y"))

    def on(leaf, *spec):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, PartitionSpec(*spec)))

    like = jax.eval_shape(init_state, KEY)
    like["params"]["layers"] = on(like["params"]["layers"], "y", "x")
    like["params"]["embedding"] = jax.device_put(np.zeros((6, 4), np.float32), jax.devices()[3])
    like["key"] = on(like["key"])
    state = restore(path, like=like)
    assert bits(state) == expected
    assert state["params"]["layers"].sharding == like["params"]["layers"].sharding
    assert state["params"]["embedding"].devices() == {jax.devices()[3]}
    assert state["key"].sharding.device_set == set(mesh.devices.flat)


def test_only_overlapping_pieces_are_read_and_each_once(run, mesh, monkeypatch):
    path, _, _, after = run
    read = []
    original = read_pieces.read_arrays

    def spy(folder, keys):
        read.extend((folder.name, key) for key in keys)
        return original(folder, keys)

    monkeypatch.setattr(read_pieces, "read_arrays", spy)
    restore(path, like=after, mesh=mesh)
    assert len(read) == len(set(read))
    read.clear()
    one_actor = restore(path, like=mesh.init(init_state, KEY))["params"]
    np.asarray(one_actor["head"])
    assert len(read) == 1
    read.clear()
    manifest = Manifest.read(path)
    layers = next(leaf for leaf in manifest.leaves if leaf.path == "['params']['layers']")
    assert len(layers.pieces) == 4, "two actors, two shards each"
    region = Region(starts=(1, 0, 3), shape=(1, 4, 1))
    checkpoint = read_pieces.Checkpoint(path=path, id=manifest.id)
    assert read_pieces.read_region(checkpoint, layers, region).shape == (1, 4, 1)
    assert len(read) == 1


def test_a_checkpoint_that_goes_away_before_the_first_step(step, mesh, run, tmp_path):
    _, _, _, after = run
    save(tmp_path / "a", after).wait()
    replaced = restore(tmp_path / "a", like=mesh.init(init_state, KEY))
    save(tmp_path / "a", after).wait()
    with pytest.raises(CheckpointError, match=r"/a was replaced by a newer one after jq\.restore\. Restore again\."):
        step(replaced, make_batch())
    removed = restore(tmp_path / "a", like=mesh.init(init_state, KEY))
    (tmp_path / "a").rename(tmp_path / "b")
    with pytest.raises(CheckpointError, match=r"/a is not there any more, or not seen from .*\. Keep it until the"):
        step(removed, make_batch())
