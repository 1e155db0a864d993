"""Layers that are alike going forward, and not after it, are no segments of one kind."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.intraop.shardings.whole_step import write_whole_step
from tests.intraop.same_numbers import check_step
from tests.intraop.steps import ZOO, analyse, inputs, mesh_of, sgd, weights, zoo_types

NUM_LAYERS, DIM = 6, 32


def layered(change_layer=lambda layer, number: layer, change_params=lambda params, number: params):
    """A step on a stack of equal layers."""

    def layer(x, params):
        return x + jnp.tanh(x @ params["up"]) @ params["down"]

    def loss(params, batch):
        x, targets = batch
        for number, of_layer in enumerate(params):
            x = change_layer(layer, number)(x, change_params(of_layer, number))
        return jnp.mean(jnp.square(x - targets))

    params = [weights(up=(DIM, 4 * DIM), down=(4 * DIM, DIM)) for _ in range(NUM_LAYERS)]
    return sgd(loss), (params, (inputs(16, DIM), inputs(16, DIM, seed=3)))


def kinds_of_layers(step, args):
    """For each layer, the kinds of the segments that its blocks are in, and its blocks' places there."""
    analysis = analyse(step, args)
    segments = [segment for segment in analysis.segments for _ in segment.blocks]
    assert len(segments) == 2 * NUM_LAYERS
    places = [(segment.kind, segment.blocks.index(block)) for block, segment in enumerate(segments)]
    return [tuple(places[start : start + 2]) for start in range(0, len(places), 2)]


def frozen_below(number_of_first):
    return lambda params, number: jax.lax.stop_gradient(params) if number < number_of_first else params


def test_equal_layers_are_of_one_kind():
    first, *others = kinds_of_layers(*layered())
    assert len(set(others)) == 1
    assert first not in others, "nobody asks for the gradient of the data"


def test_frozen_layers_are_of_another():
    layers = kinds_of_layers(*layered(change_params=frozen_below(3)))
    frozen, trained = ({kind for layer in part for kind, _ in layer} for part in (layers[:2], layers[4:]))
    assert frozen.isdisjoint(trained)


def test_weights_that_are_not_trained_but_passed_through_are_too():
    """As under an adapter: the gradient goes through them, to what stands before."""

    def freeze(params, number):
        return jax.lax.stop_gradient(params) if number >= 3 else params

    layers = kinds_of_layers(*layered(change_params=freeze))
    trained, frozen = ({kind for layer in part for kind, _ in layer} for part in (layers[1:2], layers[4:]))
    assert frozen.isdisjoint(trained)


def test_what_is_computed_again_is():
    layers = kinds_of_layers(*layered(lambda layer, number: jax.checkpoint(layer) if number < 3 else layer))
    again, once = ({kind for layer in part for kind, _ in layer} for part in (layers[1:2], layers[4:5]))
    assert again.isdisjoint(once)


def test_weights_without_moments_are():
    """Both are trained, one half by an optimizer with a moment: it takes more memory."""
    plain, (params, batch) = layered()

    def step(state, batch):
        params, moments = state
        updated, value = plain(params, batch)
        changes = [jax.tree.map(lambda new, old: new - old, *pair) for pair in zip(updated, params, strict=True)]
        moments = [
            jax.tree.map(lambda m, change: 0.9 * m + change, m, change)
            for m, change in zip(moments, changes[3:], strict=True)
        ]
        with_moments = [
            jax.tree.map(lambda param, m: param + m, *pair) for pair in zip(params[3:], moments, strict=True)
        ]
        return (updated[:3] + with_moments, moments), value

    layers = kinds_of_layers(step, ((params, params[3:]), batch))
    without, having = ({kind for layer in part for kind, _ in layer} for part in (layers[:2], layers[4:]))
    assert without.isdisjoint(having)


def convolutions(change_params):
    def loss(params, batch):
        x, targets = batch
        for number, kernel in enumerate(params):
            kernel = change_params(kernel, number)
            x = x + lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jnp.mean(jnp.square(x - targets))

    params = [inputs(3, 3, DIM, DIM, seed=number) * np.float32(0.05) for number in range(NUM_LAYERS)]
    return sgd(loss), (params, (inputs(8, 8, 8, DIM), inputs(8, 8, 8, DIM, seed=3)))


def test_frozen_convolutions_are_too():
    analysis = analyse(*convolutions(frozen_below(3)))
    kinds = [(segment.kind, place) for segment in analysis.segments for place, _ in enumerate(segment.blocks)]
    assert len(kinds) == NUM_LAYERS
    assert set(kinds[:3]).isdisjoint(kinds[3:])


class TestStateWithoutGradients:
    """Its update depends on no gradient, so that by its inputs it is forward."""

    def check(self, step, args):
        """Every part of a layer's state is updated in the layer's blocks, and sharded as its weights."""
        analysis = analyse(step, args)
        graph = analysis.graph
        block_of = {"up": 0, "down": 1}
        for name, result in zip(graph.step.input_names, graph.step.result_of_input, strict=True):
            layer = re.search(r"\[(\d)\]\['(up|down)'\]$", name)
            if layer and result is not None:
                out = graph.step.jaxpr.outvars[result]
                if out in graph.definitions:
                    wanted = 2 * int(layer[1]) + block_of[layer[2]]
                    assert analysis.owners[graph.definitions[out]] == wanted, name
        for storage in Storage:
            plan = {block.number: ("columns",) for block in analysis.blocks}
            specs = write_whole_step(StepPrograms(analysis), plan, storage=storage).in_specs
            state = [spec for spec, result in zip(specs, graph.step.result_of_input, strict=True) if result is not None]
            assert all(any(spec) for spec in state), storage
        check_step(step, args, analysis, [plan], mesh=mesh_of(x=8))

    @pytest.mark.usefixtures("quick_compilation")
    def test_moments_of_frozen_layers(self):
        plain, (params, batch) = layered(change_params=frozen_below(3))

        def step(state, batch):
            params, moments = state
            updated, value = plain(params, batch)
            change = jax.tree.map(lambda new, old: new - old, updated, params)
            moments = jax.tree.map(lambda m, c: 0.9 * m + c, moments, change)
            return (jax.tree.map(lambda param, m: param + m, params, moments), moments), value

        self.check(step, ((params, jax.tree.map(np.zeros_like, params)), batch))

    @pytest.mark.usefixtures("quick_compilation")
    def test_a_mean_of_the_old_weights(self):
        plain, (params, batch) = layered()

        def step(state, batch):
            params, means = state
            updated, value = plain(params, batch)
            means = jax.tree.map(lambda mean, param: 0.9 * mean + 0.1 * param, means, params)
            return (updated, means), value

        self.check(step, ((params, jax.tree.map(np.zeros_like, params)), batch))


@pytest.mark.thin(2)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("name", ZOO)
def test_the_zoo_has_one_kind_of_each_layer(name, optimizer):
    """Whatever the optimizer, and at both ends of the model."""
    step, args = zoo_types(name, num_layers=6, optimizer=optimizer)
    kinds = [segment.kind for segment in analyse(step, args).segments]
    assert len(set(kinds)) <= (4 if name == "moe-tiny" else 3)
