"""Values that cross segment boundaries, and the values that gradients belong to."""

from typing import Any

import jax
import numpy as np
import pytest

from jaxquard.intraop.shardings.layouts import StepLayouts
from jaxquard.intraop.step.phases import EquationPhase
from jaxquard.ir.jaxpr_tools import evaluate, make_jaxpr, new_var, prune, rename
from tests.intraop.boundary_steps import decoder_layers, skip_net
from tests.intraop.same_numbers import check_step
from tests.intraop.steps import analyse, mesh_of, random_assignment, zoo_step, zoo_types

STEPS = {
    "skips": skip_net,
    "decoder": decoder_layers,
    # The memory has the shape of everything else.
    "decoder, one length": lambda: decoder_layers(memory_length=16),
    "bert with a checkpoint": lambda: zoo_step("bert-tiny", remat=True),
    "experts": lambda: zoo_step("moe-tiny"),
}


def phase_of(analysis, var):
    return analysis.graph.phases[analysis.graph.definitions[var]]


def activations(analysis):
    return [
        found for found in analysis.boundary_values.values() if phase_of(analysis, found.var) is EquationPhase.FORWARD
    ]


def gradient_of(analysis, args, loss, boundary_value):
    """Of the loss by what later segments take of a value: the forward after it, differentiated by JAX."""
    graph = analysis.graph
    of_block = analysis.segment_of_block()
    taken = new_var(boundary_value.var)
    forward = [
        rename(equation, {boundary_value.var: taken}) if of_block[owner] > boundary_value.producer else equation
        for equation, owner, phase in zip(graph.equations, analysis.owners, graph.phases, strict=True)
        if phase is EquationPhase.FORWARD
    ]
    after = evaluate(prune(make_jaxpr([*graph.step.jaxpr.invars, taken], forward, [loss])))
    (value,) = evaluate(prune(make_jaxpr(graph.step.jaxpr.invars, graph.equations, [boundary_value.var])))(*args)
    return jax.grad(lambda value: after(*args, value)[0])(value)


@pytest.mark.parametrize("name", ["skips", pytest.param("decoder, one length", marks=pytest.mark.slow)])
def test_the_gradient_of_what_later_segments_take_of_a_value_is_found(name):
    """Many values have one shape here, so shapes alone do not decide. Parts of a gradient are found beside it."""
    step, args = STEPS[name]()
    analysis = analyse(step, args)
    graph = analysis.graph
    flat = [*jax.tree.leaves(args), *graph.step.constants]
    loss = graph.step.jaxpr.outvars[-1]
    assert not loss.aval.shape
    gradients: dict[Any, list[Any]] = {}
    for found in analysis.boundary_values.values():
        if found.value is not None:
            gradients.setdefault(found.value, []).append(found.var)
    checked = [found for found in activations(analysis) if found.var in gradients]
    assert len(checked) >= 7
    for activation in checked:
        wanted = gradient_of(analysis, flat, loss, activation)
        parts = gradients[activation.var]
        values = evaluate(prune(make_jaxpr(graph.step.jaxpr.invars, graph.equations, parts)))(*flat)
        assert any(np.allclose(value, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max()) for value in values)


class TestWhatTravels:
    def test_skips_go_over_several_segments_and_their_gradients_come_back(self):
        analysis = analyse(*skip_net())
        far = [found for found in activations(analysis) if max(place for place, _ in found.uses) > found.producer + 1]
        assert far
        for skip in far:
            back = [found for found in analysis.boundary_values.values() if found.value is skip.var]
            assert max(found.producer for found in back) == max(place for place, _ in skip.uses)

    def test_a_memory_goes_to_every_layer_of_the_decoder(self):
        analysis = analyse(*decoder_layers(3))
        memory = max(activations(analysis), key=lambda found: len(found.uses))
        assert memory.var.aval.shape == (8, 32, 64)
        assert sum(phase is EquationPhase.FORWARD for _, phase in memory.uses) == 3

    @pytest.mark.parametrize("num_layers", [4, 6])
    def test_layers_that_are_far_from_the_memory_are_alike(self, num_layers):
        analysis = analyse(*decoder_layers(num_layers))
        assert len({segment.kind for segment in analysis.segments}) == 7

    def test_a_layer_with_a_checkpoint_gets_a_value_anew(self):
        analysis = analyse(*zoo_types("gpt-tiny", remat=True))
        saved = [found.is_saved for found in activations(analysis)]
        assert saved == [False, False, True]

    def test_what_a_barrier_hands_through_does_not_go_back_and_forth(self):
        """BERT's barrier belongs to the layer before, and hands a gradient through from one place after to another."""
        analysis = analyse(*zoo_types("bert-tiny", remat=True))
        late = [
            found
            for found in analysis.boundary_values.values()
            if phase_of(analysis, found.var) is EquationPhase.BACKWARD
        ]
        assert all(found.value is not None for found in late)
        gradients = [found for found in late if analysis.graph.first(found.var) is found.var]
        assert len(gradients) == len(analysis.segments) - 1

    def test_neither_masks_nor_gradients_of_state_are_boundary_values(self):
        analysis = analyse(*zoo_types("gpt-tiny", tied_embeddings=True, dropout_rate=0.1))
        crossing = {var for segment in analysis.segments for var in StepLayouts(analysis).interface(segment).inputs}
        table = [var for var in crossing if var.aval.shape == (256, 64) and var in analysis.graph.definitions]
        assert table
        assert not set(table) & set(analysis.boundary_values)
        assert all(found.var.aval.shape == (8, 32, 64) for found in analysis.boundary_values.values())


class TestNumbers:
    @pytest.mark.parametrize("name", ["skips", pytest.param("decoder", marks=pytest.mark.slow)])
    def test_a_mixed_strategy_gives_the_same_numbers(self, name, quick_compilation):
        step, args = STEPS[name]()
        analysis = analyse(step, args)
        check_step(step, args, analysis, [random_assignment(analysis, 0)], mesh=mesh_of(x=8))

    @pytest.mark.slow
    @pytest.mark.parametrize("name", sorted(STEPS))
    def test_more_strategies_on_one_and_two_axes_do(self, name, quick_compilation):
        step, args = STEPS[name]()
        for axes in ({"x": 8}, {"data": 2, "model": 4}):
            analysis = analyse(step, args, axes)
            assignments = [random_assignment(analysis, seed) for seed in range(1, 4)]
            check_step(step, args, analysis, assignments, mesh=mesh_of(**axes))
