import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jaxquard import _jax_compat
from jaxquard.runtime.in_process.devices import make_cpu_devices
from jaxquard.runtime.transfer import choose_transfer, copy_array, place, sharding_on
from tests.runtime.build_program import array_type, make_meshes

DTYPES = [
    *("float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int32", "uint8", "int4", "uint4"),
    *("bool", "complex64"),
]


def pointers(array):
    return [shard.data.unsafe_buffer_pointer() for shard in array.addressable_shards]


def values_of(shape, dtype):
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape).astype(jnp.dtype(dtype))


def transfer_value(value, type_, source, target, target_type=None, may_share=False):
    target_type = target_type or type_
    array = place(value, sharding_on(source, type_))
    move = choose_transfer(array.sharding, sharding_on(target, target_type), type_, may_share=may_share)
    moved = move(array)
    assert moved.sharding == sharding_on(target, target_type)
    assert (moved.shape, moved.dtype) == (array.shape, array.dtype)
    np.testing.assert_array_equal(moved, value)
    return array, moved


@pytest.mark.parametrize("num_devices", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_arrive_without_a_copy(dtype, num_devices):
    source, target = make_meshes(2, num_devices)
    type_ = array_type(4, 6, dtype=dtype, spec=[["data"]])
    array, moved = transfer_value(values_of((4, 6), dtype), type_, source, target)
    if dtype not in ("int4", "uint4"):
        assert pointers(moved) == pointers(array)


@pytest.mark.parametrize("shape", [(), (0, 3), (1,)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
def test_scalars_and_empty_arrays(shape, dtype):
    source, target = make_meshes(2, 2)
    transfer_value(values_of(shape, dtype), array_type(*shape, dtype=dtype), source, target)


@pytest.mark.parametrize("num_devices", [1, 2])
@pytest.mark.parametrize("shape", [(), (4,)])
def test_random_keys(num_devices, shape):
    source, target = make_meshes(2, num_devices)
    type_ = array_type(*shape, dtype="key<fry>")
    key = jax.random.split(jax.random.key(3), shape) if shape else jax.random.key(3)
    array = place(key, sharding_on(source, type_))
    moved = choose_transfer(array.sharding, sharding_on(target, type_), type_, may_share=False)(array)
    assert moved.devices() == set(target.devices.flat)
    np.testing.assert_array_equal(jax.random.key_data(moved), jax.random.key_data(key))


@pytest.mark.parametrize("shape", [(4, 4), (8, 4)])
def test_equal_shard_sizes_with_other_indices_are_resharded(shape):
    meshes = [
        Mesh(np.array(devices).reshape(2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
        for devices in make_cpu_devices([4, 4])
    ]
    specs = [[["x"], ["y"]], [["y"], ["x"]], [["x", "y"]], [["y", "x"]], [[], ["x", "y"]], [["x"]], [["y"]], []]
    value = values_of(shape, "float32")
    for before in specs:
        for after in specs:
            transfer_value(value, array_type(*shape, spec=before), *meshes, array_type(*shape, spec=after))


def test_other_numbers_of_devices():
    one, two = (Mesh(np.array(devices), ("data",), axis_types=(AxisType.Auto,)) for devices in make_cpu_devices([1, 2]))
    value = values_of((4, 4), "float32")
    transfer_value(value, array_type(4, 4, spec=[["data"]]), one, two)
    transfer_value(value, array_type(4, 4, spec=[["data"]]), two, one)


def test_the_same_devices_share_the_array_or_copy_it():
    (mesh,) = make_meshes(1, 2)
    type_ = array_type(4, 6, spec=[["data"]])
    array, moved = transfer_value(values_of((4, 6), "float32"), type_, mesh, mesh, may_share=True)
    assert moved is array
    array, moved = transfer_value(values_of((4, 6), "float32"), type_, mesh, mesh, may_share=False)
    assert not set(pointers(moved)) & set(pointers(array))


def test_host_values_are_copied():
    (mesh,) = make_meshes(1, 2)
    value = np.zeros((1024, 16), np.float32)
    array = place(value, NamedSharding(mesh, PartitionSpec("data")))
    value[:] = 1
    np.testing.assert_array_equal(array, np.zeros((1024, 16)))


@pytest.mark.parametrize(
    ("value", "dtype"), [(1, "int32"), (1.5, "float32"), (True, "bool"), (np.arange(3.0), "float32"), ([1, 2], "int32")]
)
def test_host_values_get_the_dtype_that_jax_gives_them(value, dtype):
    (mesh,) = make_meshes(1)
    array = place(value, NamedSharding(mesh, PartitionSpec()))
    assert array.dtype == dtype
    np.testing.assert_array_equal(array, value)


def test_arrays_of_the_default_client_are_placed():
    (mesh,) = make_meshes(1, 2)
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    assert place(jnp.arange(4), sharding).sharding == sharding
    assert place(place(np.arange(4), sharding), sharding).sharding == sharding
    np.testing.assert_array_equal(place(jnp.arange(4), sharding), np.arange(4))


@pytest.mark.thin(2)
@pytest.mark.parametrize(
    ("num_devices", "num_rounds"),
    [(1, 60), (2, 60), *(pytest.param(count, 600, marks=pytest.mark.slow) for count in (1, 2))],
)
def test_memory_lives_as_long_as_any_view(num_devices, num_rounds):
    """Sources deleted, dropped or donated right after a transfer, under steady reallocation."""
    source, target = make_meshes(2, num_devices)
    type_ = array_type(256, 256, spec=[["data"]])
    ours, theirs = sharding_on(source, type_), sharding_on(target, type_)
    move = choose_transfer(ours, theirs, type_, may_share=False)
    add = jax.jit(lambda x, y: x + y, out_shardings=ours)
    consume = jax.jit(lambda x: x - 1, donate_argnums=0, out_shardings=ours)
    consume_there = jax.jit(lambda x: x * 2, donate_argnums=0, out_shardings=theirs)
    zeros = place(np.zeros((256, 256), np.float32), ours)
    held = []
    for number in range(num_rounds):
        array = add(zeros, np.float32(number))
        moved = move(array)
        if number % 4 == 0:
            array.delete()
        elif number % 4 == 1:
            held.append((number - 1, consume(array)))
        elif number % 4 == 2:
            held.append((number, array))
            moved = consume_there(moved)
            number *= 2
        del array
        add(zeros, np.float32(-1)).block_until_ready()
        held.append((number, moved))
        if number % 60 == 0:
            gc.collect()
        if len(held) > 20:
            for value, kept in held:
                np.testing.assert_array_equal(kept, np.full((256, 256), value, np.float32))
            held.clear()


def test_a_view_waits_for_its_source():
    source, target = make_meshes(2, 2)
    type_ = array_type(256, 256, spec=[["data"]])
    ours = sharding_on(source, type_)

    @jax.jit
    def slow(x):
        for _ in range(30):
            x = x @ x.T / 256
        return jax.lax.with_sharding_constraint(x * 0 + 5, ours)

    array = slow(place(np.ones((256, 256), np.float32), ours))
    moved = choose_transfer(ours, sharding_on(target, type_), type_, may_share=False)(array)
    np.testing.assert_array_equal(moved, np.full((256, 256), 5.0))


def test_copies_have_memory_of_their_own():
    (mesh,) = make_meshes(1)
    array = place(np.ones(64, np.float32), NamedSharding(mesh, PartitionSpec()))
    copy = copy_array(array)
    array.delete()
    np.testing.assert_array_equal(copy, np.ones(64))


@pytest.mark.parametrize("num_devices", [1, 2])
def test_the_public_fallback_gives_the_same(num_devices, monkeypatch):
    monkeypatch.setattr(_jax_compat, "shard_putter", lambda: _jax_compat._put_one_by_one)
    source, target = make_meshes(2, num_devices)
    for dtype in ("float32", "bfloat16", "bool"):
        transfer_value(values_of((4, 6), dtype), array_type(4, 6, dtype=dtype, spec=[["data"]]), source, target)
