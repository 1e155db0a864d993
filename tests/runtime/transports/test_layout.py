"""Layouts of channels, compared."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from jaxquard.ir.array_type import ArrayType
from jaxquard.runtime.transports.layout import LayoutError, compare_layouts, describe_layout


def layout(*texts, num_devices=2, names=("x",), shape=None, source=0):
    mesh = Mesh(np.array(jax.devices()[:num_devices]).reshape(shape or (num_devices,)), names)
    return describe_layout(source, 1, (tuple(map(ArrayType.parse, texts)),), mesh)


def test_what_each_device_holds():
    (((array,),),) = (layout("float32[4,6]{x,-}").messages,)
    assert array.parts == ((0, ((0, 2), (0, 6))), (0, ((2, 4), (0, 6))))


def test_equal_layouts_pass_whatever_they_are_called():
    compare_layouts(layout("float32[4,4]{x,-}"), layout("float32[4,4]{a,-}", names=("a",)))
    square = {"num_devices": 4, "shape": (2, 2), "names": ("x", "y")}
    compare_layouts(layout("float32[4]{x+y}", **square), layout("float32[4]{x}", num_devices=4))


@pytest.mark.parametrize(
    ("sender", "receiver", "text"),
    [
        (layout("int8[]", "float32[4,4]{x,-}"), layout("int8[]", "float32[4,4]{-,x}"), (
            "message 0 from actor 0 to actor 1, array 1: on device 0 of the mesh the sender holds [0:2, 0:4] in "
            "process 0, the receiver expects [0:4, 0:2] in process 0. Give it the receiver's sharding before sending."
        )),
        (layout("float32[4]"), layout("int32[4]"), (
            "message 0 from actor 0 to actor 1, array 0: the sender has float32[4], the receiver expects int32[4]."
        )),
        (layout("float32[4]"), layout("float32[4]", num_devices=4), (
            "message 0 from actor 0 to actor 1, array 0: the sender has it on 2 devices, the receiver on 4."
        )),
        (layout("float32[4]"), layout("float32[4]", "float32[4]"), (
            "message 0 from actor 0 to actor 1: the sender has 1 arrays, the receiver has 2."
        )),
        (layout("float32[4]"), layout("float32[4]", source=2), (
            "the sender's end of a channel has 1 messages from actor 0 to actor 1, the receiver's has 1 messages from "
            "actor 2 to actor 1."
        )),
    ],
)  # fmt: skip
def test_the_first_difference_is_named(sender, receiver, text):
    with pytest.raises(LayoutError) as caught:
        compare_layouts(sender, receiver)
    assert str(caught.value) == text


def test_transposed_meshes_differ():
    """The same spec on two orders of the same axes has shards of equal sizes in other places."""
    square = {"num_devices": 4, "shape": (2, 2)}
    sender, receiver = (layout("float32[4,4]{x,y}", names=names, **square) for names in (("x", "y"), ("y", "x")))
    with pytest.raises(LayoutError, match=r"on device 1 of the mesh the sender holds \[0:2, 2:4\]"):
        compare_layouts(sender, receiver)
