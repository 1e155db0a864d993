"""Arrays as bytes: each distinct shard once, without copies on CPU."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from jaxquard.ir.array_type import ArrayType
from jaxquard.runtime.transports.stream.frames import MessageBytes, bytes_of
from jaxquard.runtime.transports.wire import WireMessage
from tests.runtime.transports.jobs import check_value, make_value


@pytest.fixture(scope="module")
def mesh():
    return Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))


def carry(text, mesh):
    """An array after its way through bytes, its type, and the bytes that crossed."""
    type_ = ArrayType.parse(text)
    message = WireMessage((type_,), mesh, by_device=False)
    form, parts = MessageBytes(message), message.split([make_value(type_, mesh, 1)])
    views, shards = form.views(parts), form.allocate()
    targets = [bytes_of(shard) for own in shards for shard in own]
    assert [len(view) for view in views] == [len(target) for target in targets]
    for view, target in zip(views, targets, strict=True):
        target[:] = view
    (array,) = message.join(form.join(shards))
    return array, type_, form.size_bytes


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("float32[4,6]{x,y}", 96),
        ("float32[4,6]{y,-}", 96),
        ("float32[4,6]", 96),
        ("bfloat16[8]{x+y}", 16),
        ("bool[]", 1),
        ("int8[6]{x}", 6),
        ("key<fry>[4]{x}", 32),
    ],
)
def test_each_distinct_shard_crosses_once(text, num_bytes, mesh):
    array, type_, size_bytes = carry(text, mesh)
    check_value(array, type_, mesh, 1)
    assert size_bytes == num_bytes


def test_nothing_is_copied_on_cpu(mesh):
    type_ = ArrayType.parse("float32[1024]{x}")
    message = WireMessage((type_,), mesh, by_device=False)
    form, (array,) = MessageBytes(message), message.split([make_value(type_, mesh, 1) + 0])
    places = {array.addressable_data(position).unsafe_buffer_pointer() for position in range(4)}
    views = [np.frombuffer(view, np.uint8).ctypes.data for view in form.views([array])]
    assert len(views) == 2
    assert set(views) <= places
    shards = form.allocate()
    (joined,) = form.join(shards)
    assert joined.addressable_data(0).unsafe_buffer_pointer() == shards[0][0].ctypes.data


def test_a_received_array_can_be_donated(mesh):
    """XLA does not own its memory, and copies."""
    array, type_, _ = carry("float32[8]{x}", mesh)
    doubled = jax.jit(lambda x: x + x, donate_argnums=0)(array)
    assert array.is_deleted()
    np.testing.assert_array_equal(doubled, 2 * np.asarray(make_value(type_, mesh, 1)))
