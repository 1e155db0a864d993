"""Arrays as they cross, and back."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from jaxquard.ir.array_type import ArrayType
from jaxquard.runtime.transports.wire import WireMessage, wire_messages
from tests.runtime.transports.jobs import check_value, make_value

TYPES = tuple(
    map(
        ArrayType.parse,
        ["float32[4,6]{x,-}", "bfloat16[4]", "key<fry>[4]{x}", "key<rbg>[]", "bool[]", "int8[0,2]{-,x}", "key<fry>[0]"],
    )
)


@pytest.fixture
def mesh():
    return Mesh(np.array(jax.devices()[:2]), ("x",))


@pytest.mark.parametrize(("by_device", "num_parts"), [(False, 5), (True, 10)])
def test_there_and_back(mesh, by_device, num_parts):
    message = WireMessage(TYPES, mesh, by_device=by_device)
    values = [make_value(type_, mesh, seed) for seed, type_ in enumerate(TYPES)]
    parts = message.split(values)
    assert len(parts) == len(message.parts) == num_parts
    for part, type_ in zip(parts, message.parts, strict=True):
        assert (part.shape, part.dtype, part.sharding) == (type_.shape, type_.dtype, type_.sharding)
    for seed, (array, type_) in enumerate(zip(message.join(parts), TYPES, strict=True)):
        check_value(array, type_, mesh, seed)


def test_size(mesh):
    for by_device in (False, True):
        message = WireMessage(TYPES, mesh, by_device=by_device)
        assert message.size_bytes == 4 * 24 + 8 * 4 + 2 * (2 * 4 + 16 + 1), "what is whole on both counts twice"


def test_equal_messages_are_made_once(mesh):
    first, second, third = wire_messages((TYPES[:1], TYPES[1:2], TYPES[:1]), mesh)
    assert first is third
    assert first is not second
