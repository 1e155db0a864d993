"""The search space of a cell: sums, counts, volumes, strategies, names; and small cells run for real."""

import re

import pytest

from jaxquard.errors import JaxquardError
from jaxquard.evaluate.cfp.cells.cell import CellSpec, Role
from jaxquard.evaluate.cfp.cells.cell_step import make_step
from jaxquard.evaluate.cfp.run.depths import depth_specs, measure_depth
from jaxquard.evaluate.cfp.run.layer_strategies import layer_strategies
from jaxquard.evaluate.cfp.run.measured_backend import MeasuredBackend
from jaxquard.evaluate.cfp.run.run_cell import name_blocks, run_cell, thin_choices
from jaxquard.evaluate.cfp.run.sum_price import SumPricer, equation_7
from jaxquard.intraop.plan.predict import predict_all
from jaxquard.intraop.plan.search_plans import SUM_SLACK
from jaxquard.intraop.plan.segment_prices import price_segments
from jaxquard.intraop.plan.volume import volume_baseline, volumes_bytes
from jaxquard.intraop.shardings.baselines import baselines
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.pricing import PriceCache
from tests.intraop.fake_pricer import FakePricer
from tests.intraop.steps import analyse, zoo_types

TINY = CellSpec(
    model="gpt",
    num_layers=2,
    model_dim=32,
    batch_size=8,
    sequence_length=8,
    vocab_size=128,
    num_strategies=2,
    num_finalists=1,
    is_thin=True,
    dropout_rate=0.0,
    optimizer="sgd",
)


@pytest.fixture(scope="module")
def analysis():
    return analyse(*make_step(CellSpec(model="gpt", num_layers=2, model_dim=64, batch_size=8)))


@pytest.fixture(scope="module")
def prices(analysis):
    return price_segments(StepPrograms(analysis), pricer=FakePricer())


def test_sums_as_the_search_predicts_them(analysis, prices):
    known = [plan for plan in baselines(analysis).values() if plan.name in ("data parallel", "megatron")]
    known.append(volume_baseline(prices.programs))
    predicted = predict_all(prices, known, pricer=FakePricer())
    for plan, prediction in zip(known, predicted, strict=True):
        found = SumPricer(analysis, prices).price(plan.assignment)
        assert found.time_s == pytest.approx(prediction.sum_s)


def test_a_strategy_that_was_not_priced_has_no_sum(analysis, prices):
    plan = baselines(analysis)["megatron, sequence parallel"]
    assert SumPricer(analysis, prices).price(plan.assignment) is None


def test_equation_7_for_gpt(analysis, prices):
    # Embedding and head of 3, a layer of 3^4, and three boundaries of 3 * 3.
    assert equation_7(analysis, batch_axis=None) == 3 + 81 + 3 + 3 * 9
    assert prices.num_programs <= equation_7(analysis, batch_axis=None)


def test_all_strategies_of_a_layer_the_fastest_first(analysis, prices):
    chosen = baselines(analysis)["megatron, sequence parallel"].assignment
    found = layer_strategies(analysis, prices, bases=[chosen], count=None, limit_bytes=None)
    assert len(found) == len({plan.name for plan in found}) == 81
    times_s = [SumPricer(analysis, prices).price(plan.assignment).time_s for plan in found]
    assert times_s == sorted(times_s)
    layers = [segment for segment in analysis.segments if len(segment.blocks) == 4]
    for plan in found[:3]:
        taken = {tuple(plan.assignment[block] for block in segment.blocks) for segment in layers}
        assert len(taken) == 1


def test_every_kind_of_layer_takes_its_strategies():
    """In a mixture of experts: experts with attention, and dense layers at both ends with embedding or head."""
    moe = analyse(*zoo_types("moe-tiny"))
    priced = price_segments(StepPrograms(moe), pricer=FakePricer())
    base = volume_baseline(priced.programs).assignment
    found = layer_strategies(moe, priced, bases=[base], count=None, limit_bytes=None)
    counts = [len(kind.strategies) for kind in priced.kinds.values()]
    assert counts == [27, 144, 27]
    # The base itself is one of each kind.
    assert len(found) == len({plan.name for plan in found}) == sum(counts) - 2
    for plan in found:
        differing = {
            segment.kind
            for segment in moe.segments
            for block in segment.blocks
            if tuple(plan.assignment[block]) != tuple(base[block])
        }
        assert len(differing) <= 1


def test_the_base_is_the_first_that_the_search_can_price(analysis, prices):
    known = baselines(analysis)
    bases = [known["megatron, sequence parallel"].assignment, known["megatron"].assignment]
    found = layer_strategies(analysis, prices, bases=bases, count=None, limit_bytes=None)
    ends = [block for segment in analysis.segments if len(segment.blocks) == 1 for block in segment.blocks]
    assert ends
    for plan in found:
        assert [plan.assignment[block] for block in ends] == [tuple(bases[1][block]) for block in ends]


def test_some_strategies_of_a_layer(analysis, prices):
    chosen = baselines(analysis)["data parallel"].assignment
    every = layer_strategies(analysis, prices, bases=[chosen], count=None, limit_bytes=None)
    some = layer_strategies(analysis, prices, bases=[chosen], count=9, limit_bytes=None)
    assert len({plan.name for plan in some}) == 9
    sizes_bytes = dict(
        zip((plan.name for plan in every), volumes_bytes(prices.programs, [p.assignment for p in every]), strict=True)
    )
    smallest = sorted(sizes_bytes, key=sizes_bytes.__getitem__)[:3]
    # The fastest, those of minimum volume, and the slowest among others.
    assert {*(plan.name for plan in every[:3]), *smallest, every[-1].name} <= {plan.name for plan in some}
    assert [plan for plan in every if plan in some] == some
    assert len(layer_strategies(analysis, prices, bases=[chosen], count=1, limit_bytes=None)) == 1


def test_strategies_over_the_limit_are_left_out(analysis, prices):
    chosen = baselines(analysis)["data parallel"].assignment
    found = layer_strategies(analysis, prices, bases=[chosen], count=None, limit_bytes=150)
    assert 0 < len(found) < 81
    assert all(SumPricer(analysis, prices).price(plan.assignment).size_bytes <= SUM_SLACK * 150 for plan in found)


def test_blocks_are_called_by_their_weights(analysis):
    names = [block.weight for block in name_blocks(analysis)]
    layer = ["attention qkv", "attention out", "mlp up", "mlp down"]
    assert names == ["embedding tokens", *layer, *layer, "head"]
    assert [block.segment for block in name_blocks(analysis)] == [0, 1, 1, 1, 1, 2, 2, 2, 2, 3]


def test_thin_blocks_keep_data_parallelism_and_megatron(analysis):
    thin = thin_choices(analysis)
    assert {len(block.choices) for block in thin.blocks} == {2}
    for name in ("data parallel", "megatron"):
        assert baselines(thin)[name] == baselines(analysis)[name]


def test_an_unknown_model():
    with pytest.raises(
        JaxquardError, match=r"no model is called 'elmo'\. Use one of: gpt, bert, llama, mixtral, moe\."
    ):
        make_step(CellSpec(model="elmo", num_layers=1, model_dim=64, batch_size=8))


@pytest.mark.slow
def test_depth_adds_segments_and_no_programs():
    few, many = (measure_depth(spec, machine="here") for spec in depth_specs(["gpt"], [2, 5]))
    assert few.num_programs == many.num_programs
    assert many.num_segments == few.num_segments + 3
    assert min(few.traced_s, few.analysed_s, few.composed_s) > 0


@pytest.mark.slow
def test_a_small_cell_for_real(tmp_path):
    parts, backend = [], MeasuredBackend(cache=PriceCache(tmp_path))
    cell = run_cell(TINY, backend=backend, on_part=lambda label, *_: parts.append(label))
    names = {run.name for run in cell.runs if run.role is Role.BASELINE}
    assert {"data parallel", "megatron", "zero 1", "volume"} <= names
    assert cell.best.measured_s == cell.best.whole_s > 0
    assert cell.cluster is cell.best.priced_s is None
    assert all(run.measured_s is not None for run in cell.runs if run.role is Role.BASELINE)
    assert all(run.peak_bytes > 0 and run.failure is None for run in cell.runs)
    assert all(run.compiled_bytes > 0 for run in cell.runs if run.role is Role.BASELINE)
    for run in cell.runs:
        if run.communication_s is not None:
            assert run.compute_s + run.communication_s == pytest.approx(run.time_s)
    assert sum(run.role is Role.STRATEGY for run in cell.runs) == 2
    assert (cell.num_known, cell.failure) == (0, None)
    assert list(dict.fromkeys(parts))[-3:] == ["all", "the best in turns", "profiling"]

    limited = run_cell(CellSpec(**{**_fields(TINY), "memory_limit_bytes": 10, "num_strategies": 0}),
                       backend=backend)  # fmt: skip
    assert limited.num_known > 0
    assert limited.chosen is None
    assert re.match(r"memory_limit_bytes=10 \(.*\) is too little: the plans .* need \d+ bytes", limited.failure)
    assert {run.role for run in limited.runs} == {Role.BASELINE}
    assert not any(limited.fits(run) for run in limited.runs)


def _fields(spec):
    return {name: getattr(spec, name) for name in type(spec).__dataclass_fields__}


def test_equation_7_counts_every_value_at_a_boundary():
    """Two values enter the experts' segment, taken by different blocks: 12 pairs of choices more than with one."""
    moe = analyse(*zoo_types("moe-tiny"))
    assert equation_7(moe, batch_axis=None) == 231
    assert price_segments(StepPrograms(moe), pricer=FakePricer()).num_programs <= 231
