"""Values that cross packed: arrays beside the pickle, shared values as references."""

import ml_dtypes
import numpy as np
import pytest

from jaxquard.runtime.ray.client.packing import SharedValue, pack, unpack

SMALL, LARGE = np.arange(8.0), np.arange(40_000.0)


def to_and_fro(value):
    packed = pack(value)
    return unpack(packed.payload, packed.buffers)


@pytest.mark.parametrize(
    "value",
    [
        SMALL,
        LARGE,
        LARGE.reshape(200, 200).T,
        LARGE[::2],
        LARGE.astype(ml_dtypes.bfloat16),
        np.zeros((0, 3)),
        np.float32(1.5),
    ],
    ids=["small", "large", "transposed", "strided", "bfloat16", "empty", "scalar"],
)
def test_arrays_come_back(value):
    found = to_and_fro({"a": (value, 1)})["a"][0]
    np.testing.assert_array_equal(found, value)
    assert found.dtype == value.dtype


def test_only_large_arrays_are_beside_the_pickle():
    packed = pack((SMALL, LARGE))
    assert [buffer.nbytes for buffer in packed.buffers] == [LARGE.nbytes]
    assert len(packed.payload) < 2 * SMALL.nbytes + 1000


def test_large_arrays_are_not_copied():
    packed = pack(LARGE)
    assert np.shares_memory(unpack(packed.payload, packed.buffers), LARGE)


def test_shared_values_are_taken_from_whoever_has_them():
    first, second = SharedValue(7), SharedValue(9)
    packed = pack({"code": [second, first, second], "other": 3})
    assert packed.shared == (9, 7)  # Each once: pickle remembers it.
    assert unpack(packed.payload, (), ["nine", "seven"]) == {"code": ["nine", "seven", "nine"], "other": 3}
