"""The dims of a layer as a 2D product, forward and backward, held against einsum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxquard.intraop.blocks.two_dimensional import layer_dims
from tests.intraop.patterns import PATTERNS
from tests.intraop.steps import analyse, inputs, sgd, weights, zoo_types

AXES = {"data": 2, "model": 4}

# x, w and the einsum of a layer: several dims of rows, of columns and of sums, in any order, and w on the left.
LAYERS = {
    "plain": ((8, 64), (64, 32), "mk,kn->mn"),
    "sequence": ((8, 16, 64), (64, 32), "btk,kn->btn"),
    "transposed w": ((8, 16, 64), (32, 64), "btk,nk->btn"),
    "to heads": ((8, 16, 64), (64, 8, 16), "btk,khd->bthd"),
    "from heads": ((8, 16, 8, 16), (8, 16, 64), "bthd,hdn->btn"),
    "heads swapped": ((8, 16, 8, 16), (16, 8, 64), "bthd,dhn->btn"),
    "w on the left": ((8, 64), (64, 32), "mk,kn->nm"),
    "x transposed": ((64, 8, 16), (64, 32), "kbt,kn->btn"),
}


def layer_step(name):
    """A step with one layer, whose input depends on a parameter, so that gradients of both x and w are computed."""
    x_shape, w_shape, subscripts = LAYERS[name]

    def loss(params, batch):
        hidden = jnp.tanh(batch["x"] * params["scale"])
        return jnp.mean(jnp.sin(jnp.einsum(subscripts, hidden, params["w"])))

    params = weights(scale=x_shape[-1:], w=w_shape)
    return sgd(loss), (params, {"x": inputs(*x_shape)})


@pytest.mark.parametrize("name", LAYERS)
def test_forward_and_backward_are_the_einsum_that_the_dims_say(name):
    step, args = layer_step(name)
    analysis = analyse(step, args, AXES)
    (block,) = analysis.blocks
    dims = layer_dims(block.seeds[0], block.choices, number=0)
    graph = analysis.graph
    seen = 0
    for position, equation in enumerate(graph.equations):
        matched = analysis.matches.contractions.get(position)
        if position == block.seeds[0].position:
            (first, second), result = dims.inputs, dims.result
        elif matched is not None and matched.forward == block.seeds[0].position:
            (first, second), result = dims.backward(matched)
        else:
            continue
        seen += 1
        left, right = (inputs(*atom.aval.shape, seed=place) for place, atom in enumerate(equation.invars))
        found = jax.lax.dot_general(left, right, equation.params["dimension_numbers"])
        names = list(dict.fromkeys((*first, *second)))
        subscripts = [[names.index(one) for one in of_array] for of_array in (first, second, result)]
        np.testing.assert_allclose(
            found, np.einsum(left, subscripts[0], right, subscripts[1], subscripts[2]), rtol=1e-4, atol=1e-4
        )
    assert seen == 3


def test_number_0_is_the_dim_that_is_sharded():
    step, args = layer_step("from heads")
    (block,) = analyse(step, args, AXES).blocks
    dims = layer_dims(block.seeds[0], block.choices, number=0)
    for choice, letter in (("rows", "M"), ("contracted", "K"), ("columns", "N")):
        wanted = block.choice(choice).partitions[0]
        found = [of_input.index(f"{letter}0") if f"{letter}0" in of_input else None for of_input in dims.inputs]
        assert tuple(found) == wanted.in_dims
    assert {name[0] for name in dims.result} == {"M", "N"}


def test_inputs_are_sharded_along_their_contracted_dim_as_well():
    step, args = layer_step("sequence")
    block = analyse(step, args, AXES).blocks[0]
    position = block.seeds[0].position
    rows, columns = block.product_choices
    assert (rows.needs[position, 0], rows.needs[position, 1]) == (0, 0)
    assert (columns.needs[position, 0], columns.needs[position, 1]) == (2, 1)
    assert (rows.dims, columns.dims) == (block.choice("rows").dims, block.choice("columns").dims)


def test_look_ups_experts_and_convolutions_have_none():
    """Tables are looked up, experts are batched, and a convolution's window is no matrix."""
    blocks = analyse(*zoo_types("moe-tiny", num_layers=1), AXES).blocks
    batched = [block for block in blocks if any(choice.name.startswith("batch") for choice in block.choices)]
    assert blocks[0].seeds[0].is_lookup
    assert batched
    assert not any(block.product_choices for block in (blocks[0], *batched))
    windows = [
        block
        for block in analyse(*PATTERNS["convolutions"](), AXES).blocks
        if block.seeds[0].equation.primitive.name == "conv_general_dilated"
    ]
    assert windows
    assert not any(block.product_choices for block in windows)
