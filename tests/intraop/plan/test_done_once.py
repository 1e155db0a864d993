"""A search derives each fact of a step once, and the same as the first time."""

import random
from collections import Counter

import pytest

from jaxquard.intraop.plan.predict import predict_all
from jaxquard.intraop.plan.search_sharding import search_sharding
from jaxquard.intraop.plan.segment_prices import price_segments
from jaxquard.intraop.segments.analysis import StepAnalyser, analyse_step
from jaxquard.intraop.segments.interfaces import SegmentInterfaces
from jaxquard.intraop.segments.strategies import segment_strategies
from jaxquard.intraop.shardings import layouts
from jaxquard.intraop.shardings.baselines import baselines
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.intraop.shardings.whole_step import write_whole_step
from jaxquard.intraop.step.traced_step import trace_step
from jaxquard.pricing.program.fingerprint import Fingerprints
from tests.intraop.fake_pricer import FakePricer
from tests.intraop.steps import mesh_of, zoo_types


class KeepingPricer(FakePricer):
    """Keeps the programs, too."""

    def __init__(self):
        super().__init__()
        self.programs = []

    def price_all(self, programs, **more):
        self.programs += programs
        return super().price_all(programs, **more)


@pytest.fixture
def counted(monkeypatch):
    """Counts how often each segment was analysed, and laid out under each choice of its blocks."""
    found = Counter()
    read, axis_layout = SegmentInterfaces._read, layouts.AxisLayout
    lay_out_blocks, lay_out_state = axis_layout.lay_out_blocks, axis_layout.lay_out_state

    def read_counted(self, segment):
        found["interface", segment] += 1
        return read(self, segment)

    def blocks_counted(self, blocks, choices):
        self.laid_out = tuple((block.number, choices[block.number].name) for block in blocks)
        return lay_out_blocks(self, blocks, choices)

    def state_counted(self, storage, **more):
        found["layouts", self.laid_out, storage] += 1
        return lay_out_state(self, storage, **more)

    monkeypatch.setattr(SegmentInterfaces, "_read", read_counted)
    monkeypatch.setattr(axis_layout, "lay_out_blocks", blocks_counted)
    monkeypatch.setattr(axis_layout, "lay_out_state", state_counted)
    return found


def test_each_segment_is_looked_at_once_and_laid_out_once_for_each_choice(counted):
    programs = StepPrograms(analyse_step(trace_step(*zoo_types("gpt-tiny")), axes={"x": 8}))
    prices = price_segments(programs, pricer=FakePricer())
    predict_all(prices, [*baselines(programs.analysis).values()], pricer=FakePricer())
    # 3 choices at both ends, 81 for a layer, and more for plans of the second layer and for state in parts.
    assert len(counted) > 3 + 81 + 3
    assert set(counted.values()) == {1}


def test_strategies_of_a_segment_share_its_jaxpr():
    pricer = KeepingPricer()
    step, args = zoo_types("gpt-tiny")
    search_sharding(step, args, mesh=mesh_of(x=8), pricer=pricer)
    # State in parts (ZeRO) is copied as well, as the strategy wants it.
    programs = [program for program in pricer.programs if "zero" not in program.name]
    layers = [program for program in programs if program.name.startswith("segment 1:")]
    whole = [program for program in programs if program.name.startswith("segment 0 and 1")]
    assert len(layers) >= 81
    assert len(whole) > 10
    for together in (layers, whole):
        assert len({id(program.jaxpr) for program in together}) == 1


@pytest.mark.parametrize("name", ["gpt-tiny", "moe-tiny"])
def test_a_program_does_not_depend_on_those_written_before(name):
    step, args = zoo_types(name)
    analysis = analyse_step(trace_step(step, args), axes={"x": 2, "y": 4})
    used = StepPrograms(analysis)
    chooser = random.Random(0)
    segment = analysis.segments[1]
    keys = Fingerprints()
    for strategy in chooser.sample(
        segment_strategies(segment, graph=analysis.graph, blocks=analysis.blocks, axes=analysis.axes), 4
    ):
        assignment = dict(zip(segment.blocks, strategy, strict=True))
        fresh = StepPrograms(analysis)
        for storage in Storage:
            again, first = (one.write_segments([segment], assignment, storage=storage) for one in (used, fresh))
            assert keys.key(again) == keys.key(first) is not None
    for plan in baselines(analysis).values():
        fresh = StepPrograms(analysis)
        again, first = (write_whole_step(one, plan.assignment, storage=plan.storage) for one in (used, fresh))
        assert keys.key(again) == keys.key(first) is not None


@pytest.mark.parametrize("name", ["gpt-tiny", "moe-tiny"])
def test_an_analysis_for_many_meshes_is_that_of_each(name):
    traced = trace_step(*zoo_types(name))
    analyser = StepAnalyser(traced)
    keys, sizes = Fingerprints(), ((8,), (4,), (2, 4), (4, 2), (1, 8), (16,))
    before = None
    for of_axes in sizes:
        axes = dict(zip("xyz", of_axes, strict=False))
        alone, shared = analyse_step(traced, axes=axes), analyser.analyse(axes=axes)
        assert [block.names for block in shared.blocks] == [block.names for block in alone.blocks]
        assert (shared.segments, shared.owners) == (alone.segments, alone.owners)
        before = StepPrograms(shared, like=before)
        fresh = StepPrograms(alone)
        assert len(before.boundaries) == len(fresh.boundaries)
        for plan in baselines(alone).values():
            for segment in alone.segments[:2]:
                for storage in Storage:
                    again, first = (
                        one.write_segments([segment], plan.assignment, storage=storage) for one in (before, fresh)
                    )
                    assert keys.key(again) == keys.key(first) is not None
    assert len(analyser._grouped) < len(sizes)
