"""Context parallelism as a choice: where it is offered, what moves under it, and that it computes the same."""

import pytest

from jaxquard.intraop.blocks.shard_sequence import SEQUENCE
from jaxquard.intraop.segments.strategies import segment_strategies
from jaxquard.intraop.shardings.baselines import baselines
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.intraop.shardings.whole_step import write_whole_step
from jaxquard.pricing.program.lower_program import lower_program
from tests.gemm.collectives import list_collectives
from tests.intraop.same_numbers import check_step
from tests.intraop.steps import analyse, mesh_of, zoo_step, zoo_types

pytestmark = pytest.mark.usefixtures("quick_compilation")

BATCH, LENGTH, DIM = 8, 256, 64
TWO_AXES = {"data": 2, "model": 4}


def along_sequence(analysis):
    names = (*["rows"] * (len(analysis.axes) - 1), SEQUENCE)
    return {block.number: names for block in analysis.blocks}


@pytest.mark.parametrize(
    ("name", "axes", "remat"),
    [
        ("gpt-tiny", {"x": 8}, False),
        ("llama-tiny", TWO_AXES, False),
        pytest.param("gpt-tiny", TWO_AXES, True, marks=pytest.mark.slow),
        pytest.param("bert-tiny", {"x": 8}, False, marks=pytest.mark.slow),
        pytest.param("llama-tiny", {"x": 8}, True, marks=pytest.mark.slow),
    ],
)
def test_numbers_are_those_of_one_device(name, axes, remat):
    step, args = zoo_step(name, num_layers=1, sequence_length=LENGTH, remat=remat)
    analysis = analyse(step, args, axes)
    check_step(step, args, analysis, [along_sequence(analysis)], mesh=mesh_of(**axes))


def test_keys_and_values_are_gathered_and_nothing_else():
    analysis = analyse(*zoo_types("gpt-tiny", num_layers=1, sequence_length=LENGTH))
    program = write_whole_step(StepPrograms(analysis), along_sequence(analysis))
    found = list_collectives(lower_program(program, mesh=mesh_of(x=8)).compile().as_text())
    of_tokens = 4 * BATCH * LENGTH * DIM
    assert [one.result_bytes for one in found if one.kind == "all-gather"] == [(of_tokens,), (of_tokens,)]
    others = [one for one in found if one.kind != "all-gather"]
    assert {one.kind for one in others} == {"all-reduce"}
    # The CPU's compiler has no reduce-scatter. The gradients of keys and values are the only large ones.
    assert sum(size for one in others for size in one.result_bytes if size >= of_tokens) == 2 * of_tokens


@pytest.mark.parametrize(
    ("axes", "batch_axis", "wanted"),
    [
        ({"x": 8}, None, {(SEQUENCE,)}),
        (TWO_AXES, "data", {("rows", SEQUENCE)}),
        (TWO_AXES, None, {("rows", SEQUENCE), (SEQUENCE, "rows")}),
    ],
)
def test_it_is_one_more_strategy_of_a_segment(axes, batch_axis, wanted):
    analysis = analyse(*zoo_types("gpt-tiny", num_layers=2, sequence_length=LENGTH), axes)
    for segment in analysis.segments:
        strategies = segment_strategies(
            segment, graph=analysis.graph, blocks=analysis.blocks, axes=axes, batch_axis=batch_axis
        )
        found = [strategy for strategy in strategies if any(SEQUENCE in names for names in strategy)]
        assert {strategy[0] for strategy in found} == wanted
        assert all(len(set(strategy)) == 1 for strategy in found)


@pytest.mark.parametrize("length", [32, 64])
def test_short_sequences_do_not_have_it(length):
    analysis = analyse(*zoo_types("gpt-tiny", num_layers=1, sequence_length=length))
    assert all(SEQUENCE not in [choice.name for choice in block.all_choices] for block in analysis.blocks)
    assert "context parallel" not in baselines(analysis)


def test_a_length_that_the_mesh_does_not_divide():
    analysis = analyse(*zoo_types("gpt-tiny", num_layers=1, sequence_length=LENGTH - 4))
    assert all(SEQUENCE not in [choice.name for choice in block.all_choices] for block in analysis.blocks)


def test_it_is_a_baseline_too():
    analysis = analyse(*zoo_types("gpt-tiny", num_layers=1, sequence_length=LENGTH), TWO_AXES)
    assert baselines(analysis)["context parallel"].assignment == along_sequence(analysis)


class TestSmallBatches:
    """Two sequences on 2 x 4 devices: the batch over one axis, the sequence over the other."""

    def test_numbers_are_those_of_one_device(self):
        step, args = zoo_step("gpt-tiny", num_layers=1, sequence_length=LENGTH, batch_size=2)
        analysis = analyse(step, args, TWO_AXES)
        assert all(block.choice("rows").num_chunks == 2 for block in analysis.blocks)
        check_step(step, args, analysis, [along_sequence(analysis)], mesh=mesh_of(**TWO_AXES))

    def test_rows_are_the_sequence_where_it_is_short(self):
        analysis = analyse(*zoo_types("gpt-tiny", num_layers=1, sequence_length=32, batch_size=2), TWO_AXES)
        assert all(block.choice("rows").num_chunks == 32 for block in analysis.blocks)
