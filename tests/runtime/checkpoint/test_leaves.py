"""Leaves of every kind, in every layout: the same bits come back."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxquard.ir.array_type import ArrayType
from jaxquard.runtime.checkpoint.array_store import InProcessStore
from jaxquard.runtime.checkpoint.files.manifest import Manifest
from jaxquard.runtime.checkpoint.restore import restore
from jaxquard.runtime.checkpoint.save import save
from jaxquard.runtime.remote_array import RemoteArray, RemotePart
from jaxquard.runtime.result_cell import ResultCell
from jaxquard.runtime.transfer import place, sharding_on
from tests.few_examples import few_examples
from tests.runtime.checkpoint.training import bits

DTYPES = "bool int8 uint8 int32 uint32 float16 bfloat16 float32 complex64 float8_e4m3fn float8_e4m3 int4 uint4".split()


def round_trip(path, state, like=None):
    save(path, state).wait()
    return restore(path, like=state if like is None else like)


def test_dtypes_and_shapes(tmp_path):
    state = {
        f"{dtype} {shape}": jax.numpy.asarray((np.arange(np.prod(shape)).reshape(shape) % 3).astype(jnp.dtype(dtype)))
        for dtype in DTYPES
        for shape in ((), (5,), (2, 0, 3), (3, 2))
    }
    found = round_trip(tmp_path / "a", state)
    assert bits(found) == bits(state)
    assert all(isinstance(leaf, jax.Array) for leaf in found.values())


def test_numpy_and_numbers(tmp_path):
    state = {
        "numpy": np.arange(6.0).reshape(2, 3).T,
        "other byte order": np.arange(3, dtype=">i4"),
        "int64": np.int64(1) << 40,
        "float64": np.float64(0.1),
        "bool": True,
        "int": -(1 << 40),
        "float": 0.1,
        "complex": 1 + 2j,
        "nothing": None,
        "empty": (),
        "half": np.zeros(2, ml_dtypes.bfloat16),
    }
    found = round_trip(tmp_path / "a", state)
    assert jax.tree.structure(found) == jax.tree.structure(state)
    for name, leaf in state.items():
        assert type(found[name]) is type(leaf)
        np.testing.assert_array_equal(found[name], leaf)
    assert found["float64"].dtype == np.float64
    assert found["numpy"].flags.writeable


def test_a_number_takes_any_dtype_of_its_kind(tmp_path):
    state = {"step": jnp.int32(7), "rate": jnp.bfloat16(0.5)}
    assert round_trip(tmp_path / "a", state, {"step": 0, "rate": 0.0}) == {"step": 7, "rate": 0.5}


def test_64_bits_are_kept(tmp_path):
    with jax.enable_x64(True):
        state = {"a": jnp.float64(0.1), "b": jax.device_put(jnp.arange(4) << 40, jax.devices()[1])}
    found = round_trip(tmp_path / "a", state)
    assert bits(found) == bits(state)
    assert found["a"].dtype == jnp.float64


def test_keys_and_a_state_that_is_one_leaf(tmp_path):
    for number, impl in enumerate(("threefry2x32", "rbg", "unsafe_rbg")):
        keys = jax.random.split(jax.random.key(3, impl=impl), 4)
        found = round_trip(tmp_path / str(number), keys)
        assert found.dtype == keys.dtype
        assert bits(found) == bits(keys)
    assert round_trip(tmp_path / "none", keys[:0]).shape == (0,)
    assert round_trip(tmp_path / "empty", {}) == {}


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    weight: jax.Array
    steps: tuple[int, ...]


def test_own_nodes(tmp_path):
    state = State(weight=jnp.ones(2), steps=(1, 2))
    found = round_trip(tmp_path / "a", state)
    assert isinstance(found, State)
    assert found.steps == (1, 2)
    assert [leaf.path for leaf in Manifest.read(tmp_path / "a").leaves] == [".weight", ".steps[0]", ".steps[1]"]


def test_copies_are_written_once(tmp_path):
    mesh = Mesh(np.array(jax.devices()).reshape(2, 4), ("x", "y"))
    array = jax.device_put(np.arange(16.0, dtype=np.float32).reshape(4, 4), NamedSharding(mesh, PartitionSpec("x")))
    save(tmp_path / "a", {"a": array}).wait()
    (leaf,) = json.loads((tmp_path / "a" / "jaxquard.json").read_text())["leaves"]
    assert leaf["shape"] == [4, 4]
    assert [(piece["starts"], piece["shape"]) for piece in leaf["pieces"]] == [([0, 0], [2, 4]), ([2, 0], [2, 4])]


# Any layout into any other. A leaf is split into parts on different actors, each sharded over the actor's mesh.


@functools.cache
def actor_mesh(actor):
    return Mesh(np.array(jax.devices()[4 * actor : 4 * actor + 4]).reshape(2, 2), ("x", "y"))


@st.composite
def layouts(draw, shape):
    """The sizes of the parts, the actors that have each, and the spec, in which only divisible dims are sharded."""
    splits = draw(st.lists(st.integers(0, shape[0]), max_size=3)) if shape else []
    bounds = sorted({0, shape[0], *splits}) if shape else [0, 1]
    sizes = tuple(np.diff(bounds).tolist()) or (0,)
    actors = tuple(draw(st.sampled_from([(0,), (1,), (0, 1), (1, 0)])) for _ in sizes)
    spec, axes = [], {"x", "y"}
    for dim, size in enumerate(shape):
        lengths = sizes if dim == 0 else (size,)
        fitting = [axis for axis in sorted(axes) if all(length % 2 == 0 for length in lengths)]
        chosen = draw(st.sampled_from([None, *fitting]))
        spec.append(() if chosen is None else (chosen,))
        axes -= {chosen}
    return sizes, actors, tuple(spec)


@st.composite
def cases(draw):
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8]), max_size=3)))
    dtype = draw(st.sampled_from(["float32", "bfloat16", "int8", "bool", "key<fry>"]))
    return dtype, shape, draw(layouts(shape)), draw(layouts(shape))


def remote(value, dtype, layout):
    """An array in a layout, without a program."""
    sizes, actors, spec = layout
    parts, start = [], 0
    owner = InProcessStore({actor: actor_mesh(actor) for where in actors for actor in where})
    for size, where in zip(sizes, actors, strict=True):
        rows = value[start : start + size] if value.shape else value
        start += size
        type_ = ArrayType(dtype=dtype, shape=tuple(rows.shape), spec=spec)
        copies = [
            ResultCell(actor=actor, buffer=place(rows, sharding_on(actor_mesh(actor), type_)), owner=owner)
            for actor in where
        ]
        parts.append(RemotePart(type=type_, copies=tuple(copies)))
    return RemoteArray(parts=tuple(parts))


@few_examples(12)
@given(cases())
def test_any_layout_into_any_other(tmp_path_factory, case):
    dtype, shape, before, after = case
    if dtype == "key<fry>":
        count = int(np.prod(shape))
        data = np.arange(2 * count, dtype=np.uint32).reshape(*shape, 2)
        value = jax.random.wrap_key_data(data, impl="threefry2x32")
    else:
        value = jnp.asarray(np.random.default_rng(0).normal(size=shape), dtype)
    path = tmp_path_factory.mktemp("layout") / "a"
    saved = remote(value, dtype, before)
    like = remote(value, dtype, after)
    save(path, [saved]).wait()
    (found,) = restore(path, like=[like])
    assert bits(found) == bits(value)
    assert found.placement == like.placement
    for part, expected in zip(found.parts, like.parts, strict=True):
        assert part.type == expected.type
        for cell, like_cell in zip(part.copies, expected.copies, strict=True):
            found_buffer, like_buffer = cell.wait_ready(), like_cell.wait_ready()
            assert bits(found_buffer) == bits(like_buffer)
            assert found_buffer.sharding.is_equivalent_to(like_buffer.sharding, found_buffer.ndim)
