"""Every equation of a step belongs to one block, and little crosses between segments."""

from functools import cache

import pytest

from jaxquard.intraop.blocks.match_backward import match_backward
from jaxquard.intraop.shardings.layouts import StepLayouts
from jaxquard.intraop.step.phases import EquationPhase
from jaxquard.ir.jaxpr_tools import variables
from tests.intraop.patterns import PATTERNS
from tests.intraop.scanned_zoo import scanned_types
from tests.intraop.steps import ZOO, analyse, zoo_types

# Those that lay out layers without products between blocks.
DENSE = ("gpt-tiny", "bert-tiny", "llama-tiny")


@cache
def zoo(name, *, remat):
    return analyse(*zoo_types(name, remat=remat, dropout_rate=0.1, num_layers=3, optimizer="adam"))


def check_ownership(analysis):
    graph = analysis.graph
    numbers = {block.number for block in analysis.blocks}
    assert len(analysis.owners) == len(graph.equations)
    assert set(analysis.owners) == numbers
    for block in analysis.blocks:
        assert {analysis.owners[position] for position in block.equations} == {block.number}
    assert sorted(number for segment in analysis.segments for number in segment.blocks) == sorted(numbers)


def check_crossings(analysis):
    """The segments' programs are the step: all equations, each once, and what one needs another gives."""
    graph = analysis.graph
    interfaces = [StepLayouts(analysis).interface(segment) for segment in analysis.segments]
    positions = [position for interface in interfaces for position in interface.positions]
    assert sorted(positions) == list(range(len(graph.equations)))
    given = {var for interface in interfaces for var in interface.outputs} | set(graph.step.jaxpr.invars)
    for interface in interfaces:
        made = {var for position in interface.positions for var in graph.equations[position].outvars}
        assert given.issuperset(interface.inputs)
        assert made.issuperset(interface.outputs)
        assert made.isdisjoint(interface.inputs)
    results = {var for var in variables(graph.step.jaxpr.outvars) if var in graph.definitions}
    assert {var for interface in interfaces for var in interface.outputs} >= results


def arrays_between(analysis, segment, phase):
    """The arrays of a phase that a segment takes from others."""
    graph = analysis.graph
    found = [
        var for var in StepLayouts(analysis).interface(segment).inputs if var in graph.definitions and var.aval.shape
    ]
    return [var.aval.shape for var in found if graph.phases[graph.definitions[var]] is phase]


def layers(analysis):
    kinds = [segment.kind for segment in analysis.segments]
    return [segment for segment in analysis.segments if kinds.count(segment.kind) == 3]


class TestZoo:
    @pytest.mark.thin(2)
    @pytest.mark.parametrize("remat", [False, True])
    @pytest.mark.parametrize("name", ZOO)
    def test_every_equation_has_one_owner_and_the_segments_are_the_step(self, name, remat):
        analysis = zoo(name, remat=remat)
        check_ownership(analysis)
        check_crossings(analysis)

    @pytest.mark.parametrize("remat", [False, True])
    @pytest.mark.parametrize("name", DENSE)
    def test_one_value_enters_a_layer(self, name, remat):
        analysis = zoo(name, remat=remat)
        assert len(layers(analysis)) == 3
        for layer in layers(analysis):
            assert arrays_between(analysis, layer, EquationPhase.FORWARD) == [(8, 32, 64)]

    @pytest.mark.parametrize(
        ("name", "remat"), [*((name, False) for name in DENSE), ("gpt-tiny", True), ("llama-tiny", True)]
    )
    def test_one_gradient_enters_a_layer(self, name, remat):
        analysis = zoo(name, remat=remat)
        for layer in layers(analysis):
            assert arrays_between(analysis, layer, EquationPhase.BACKWARD) == [(8, 32, 64)]

    def test_no_weight_crosses_where_a_checkpoint_ends_before_a_norm(self):
        """BERT norms at the end of a layer, and a block ends before a norm: both have a part of the barrier."""
        analysis = zoo("bert-tiny", remat=True)
        for layer in layers(analysis):
            crossing = arrays_between(analysis, layer, EquationPhase.BACKWARD)
            assert set(crossing) <= {(8, 32, 64), (64,)}
            assert crossing.count((64,)) <= 1

    def test_one_value_enters_a_layer_with_experts_and_the_one_after_it(self):
        """Equations that bring the experts' results back to the sequence belong to their block."""
        analysis = analyse(*zoo_types("moe-tiny", num_layers=4))
        assert [segment.kind for segment in analysis.segments] == [0, 1, 2, 1, 2, 3]
        for segment in analysis.segments[1:]:
            assert arrays_between(analysis, segment, EquationPhase.FORWARD) == [(8, 32, 64)]

    @pytest.mark.parametrize("name", ZOO)
    def test_a_gradient_leaves_a_segment_for_the_value_that_enters_it(self, name):
        analysis = zoo(name, remat=False)
        for segment in analysis.segments[1:]:
            interface = StepLayouts(analysis).interface(segment)
            assert interface.entry is not None
            assert interface.entry in {found.value for found in interface.leaving}


@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_what_else_users_write_is_owned_too(name):
    analysis = analyse(*PATTERNS[name]())
    check_ownership(analysis)
    check_crossings(analysis)


@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("name", ZOO)
def test_backward_products_belong_to_the_block_of_their_forward(name, remat):
    analysis = zoo(name, remat=remat)
    contractions = match_backward(analysis.graph).contractions
    assert contractions
    for backward, forward in ((position, found.forward) for position, found in contractions.items()):
        assert analysis.owners[backward] == analysis.owners[forward]


@pytest.mark.parametrize("options", [{"is_outer": True}, {"is_outer": True, "remat": True}])
def test_under_a_checkpoint_of_all_layers_each_updates_its_own_weights(options):
    """Its barrier has all weights of all layers, and is in one block."""
    analysis = analyse(*scanned_types("gpt-tiny", changes={"num_layers": 4}, **options))
    graph = analysis.graph
    results = [graph.step.jaxpr.outvars[result] for result in graph.step.result_of_input if result is not None]
    owners = [analysis.owners[graph.definitions[var]] for var in results if var.aval.shape == (64, 256)]
    assert owners == [3, 7, 11, 15]
