import threading
import time

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from jaxquard.errors import DeletedArrayError, RemoteArrayError
from jaxquard.runtime.remote_array import RemoteArray, RemotePart
from jaxquard.runtime.result_cell import ResultCell
from jaxquard.runtime.step_state import StepState
from jaxquard.runtime.transfer import place, sharding_on
from tests.runtime.build_program import array_type, make_meshes


def make_remote(*values, type_=None, actors=((1,),)):
    """A remote array with one part for each value and copies on these actors."""
    meshes = make_meshes(4, 2)
    parts = []
    for value, copies in zip(values, actors, strict=True):
        value_type = type_ or array_type(*np.shape(value), dtype=str(jnp.asarray(value).dtype))
        cells = tuple(
            ResultCell(actor=actor, buffer=place(value, sharding_on(meshes[actor], value_type))) for actor in copies
        )
        parts.append(RemotePart(type=value_type, copies=cells))
    return RemoteArray(parts=tuple(parts))


@pytest.fixture
def remote():
    return make_remote(np.arange(6, dtype=np.float32).reshape(2, 3))


@pytest.fixture
def scalar():
    return make_remote(np.float32(2.5))


def test_what_it_is(remote):
    assert (remote.shape, remote.dtype, remote.ndim) == ((2, 3), np.float32, 2)
    assert (remote.size, remote.nbytes, len(remote)) == (6, 24, 2)
    assert repr(remote) == "RemoteArray(float32[2,3], actor 1)"


def test_placement():
    type_ = array_type(4, 2, spec=[["data"]])
    value = np.zeros((4, 2), np.float32)
    remote = make_remote(value, value, type_=type_, actors=((0, 3), (2,)))
    assert remote.shape == (8, 2)
    first, second = remote.placement
    assert (first.start, first.stop, first.actors, first.spec) == (0, 4, (0, 3), PartitionSpec(("data",)))
    assert (second.start, second.stop, second.actors) == (4, 8, (2,))
    assert remote.cell(actor=3).actor == 3
    assert remote.cell(actor=2) is None
    assert remote.cell(actor=2, part=1).actor == 2
    assert repr(remote) == "RemoteArray(float32[8,2]{data}, actors 0, 2, 3)"


def test_fetching(remote):
    expected = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(np.asarray(remote), expected)
    np.testing.assert_array_equal(np.array(remote, dtype=np.int32), expected)
    np.testing.assert_array_equal(np.array(remote, copy=True), expected)
    np.testing.assert_allclose(remote, expected)
    assert isinstance(remote.__array__(), np.ndarray)
    assert remote.tolist() == expected.tolist()


def test_trees_are_fetched(remote, scalar):
    tree = {"a": [remote, 1], "b": (scalar, jnp.ones(2))}
    found = jax.device_get(tree)
    assert isinstance(found["a"][0], np.ndarray)
    assert found["a"][1] == 1
    assert found["b"][0] == 2.5
    assert jax.block_until_ready(tree)["a"][0] is remote
    assert jax.tree.structure(tree).num_leaves == 4


def test_parts_are_stacked():
    remote = make_remote(np.zeros((2, 2), np.int32), np.ones((1, 2), np.int32), actors=((0,), (1, 2)))
    np.testing.assert_array_equal(remote, [[0, 0], [0, 0], [1, 1]])


def test_scalars_become_python_numbers(scalar):
    assert (float(scalar), int(scalar), bool(scalar), complex(scalar), scalar.item()) == (2.5, 2, True, 2.5, 2.5)
    assert f"{scalar:.3f}" == "2.500"
    assert f"{scalar}" == "RemoteArray(float32[], actor 1)"
    assert range(5)[make_remote(np.int32(3))] == 3


def test_only_one_value_is_a_number(remote):
    with pytest.raises(ValueError, match="can only convert an array of size 1"):
        float(remote)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.bool_, np.float16])
def test_dtypes_are_kept(dtype):
    remote = make_remote(np.ones(3).astype(dtype))
    assert remote.dtype == dtype
    assert np.asarray(remote).dtype == dtype


def test_random_keys_come_back_as_keys_or_as_their_data():
    key = jax.random.key(7)
    type_ = array_type(dtype="key<fry>")
    remote = make_remote(key, type_=type_)
    assert remote.dtype == key.dtype
    assert remote.fetch().dtype == key.dtype
    np.testing.assert_array_equal(jax.random.key_data(remote.fetch()), jax.random.key_data(key))
    np.testing.assert_array_equal(jax.device_get({"key": remote})["key"], jax.random.key_data(key))
    np.testing.assert_array_equal(np.asarray(remote), jax.random.key_data(key))
    stacked = make_remote(*[jax.random.split(key, 2)] * 2, type_=array_type(2, dtype="key<fry>"), actors=((0,), (1,)))
    assert stacked.fetch().shape == (4,)


USES = {
    "jnp function": lambda x: jnp.sin(x),
    "jnp.asarray": jnp.asarray,
    "jit": lambda x: jax.jit(lambda y: y + 1)(x),
    "grad": lambda x: jax.grad(lambda y: y.sum())(x),
    "vmap": lambda x: jax.vmap(lambda y: y)(x),
    "device_put": jax.device_put,
    "stack": lambda x: jnp.stack([x, x]),
    "eval_shape": lambda x: jax.eval_shape(lambda y: y, x),
    "make_jaxpr": lambda x: jax.make_jaxpr(lambda y: y)(x),
    "array plus": lambda x: jnp.ones(3) + x,
    "plus array": lambda x: x + jnp.ones(3),
    "plus": lambda x: x + 1,
    "minus from": lambda x: 1 - x,
    "matmul": lambda x: x @ x,
    "power": lambda x: x**2,
    "negative": lambda x: -x,
    "less": lambda x: x < 1,
    "equal": lambda x: x == 1,
    "numpy plus": lambda x: np.ones(3) + x,
    "numpy function": np.exp,
    "index": lambda x: x[0],
    "loop": list,
}


@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_other_uses_say_what_to_do(remote, use):
    with pytest.raises(RemoteArrayError, match=r"float32\[2,3\] lives on actor 1. Pass it to a distributed step") as e:
        use(remote)
    assert "jax.device_get(x)" in str(e.value)


def test_lax_functions_refuse_it(remote):
    with pytest.raises(TypeError, match="RemoteArray"):
        jax.lax.sin(remote)


def test_methods_of_arrays_say_what_to_do(remote):
    with pytest.raises(AttributeError, match=r"no attribute 'mean'. float32\[2,3\] lives on actor 1"):
        remote.mean()
    with pytest.raises(AttributeError, match=r"no attribute 'nonsense'\.$"):
        remote.nonsense  # noqa: B018


def test_it_is_no_jax_array_and_hashes_by_identity(remote):
    assert not isinstance(remote, jax.Array)
    assert hash(remote) != hash(make_remote(np.zeros(2)))


def test_deleted_arrays_say_so(remote):
    assert not remote.is_deleted()
    remote.delete()
    assert remote.is_deleted()
    assert repr(remote) == "RemoteArray(float32[2,3], actor 1, deleted)"
    for use in (np.asarray, jax.device_get, jax.block_until_ready):
        with pytest.raises(DeletedArrayError, match="was donated to a distributed step"):
            use(remote)


def test_a_copy_that_is_left_is_read():
    remote = make_remote(np.ones(2, np.float32), actors=((0, 1),))
    remote.cell(actor=0).delete()
    np.testing.assert_array_equal(remote, np.ones(2))


def test_pending_arrays_wait_for_their_actor():
    state = StepState(num_actors=1)
    cell = ResultCell(actor=0, step=state)
    remote = RemoteArray(parts=(RemotePart(type=array_type(2), copies=(cell,)),))
    assert not remote.is_ready()
    (mesh,) = make_meshes(1)

    def fill():
        time.sleep(0.05)
        cell.fill(place(np.ones(2, np.float32), sharding_on(mesh, array_type(2))))
        state.report_dispatched(0)
        state.report_ended(failure=None, is_intact=True)

    threading.Thread(target=fill).start()
    np.testing.assert_array_equal(remote, np.ones(2))
    assert remote.is_ready()
