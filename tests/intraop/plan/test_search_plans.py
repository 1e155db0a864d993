"""The plans that are priced again, and the error for a step that has none."""

from dataclasses import replace

import pytest

from jaxquard.errors import ShardingError
from jaxquard.intraop.plan import search_plans
from jaxquard.intraop.plan.search_plans import choose_finalists
from jaxquard.intraop.plan.search_sharding import search_sharding
from jaxquard.intraop.plan.segment_prices import make_chain, price_segments
from jaxquard.intraop.search.chain import search_chain
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.pricing import Failure, FailureReason, Price
from tests.intraop.fake_pricer import FakePricer
from tests.intraop.patterns import PATTERNS
from tests.intraop.steps import mesh_of, zoo_types
from tests.intraop.zoo_analyses import analyse_model


class ScaledPricer(FakePricer):
    """Programs whose names a test picks take so many times the memory."""

    def __init__(self, scale, **more):
        super().__init__(**more)
        self.scale = scale

    def _price(self, name):
        found = super()._price(name)
        return (
            replace(found, peak_bytes=int(found.peak_bytes * self.scale(name))) if isinstance(found, Price) else found
        )


class FailingPricer(FakePricer):
    """A program that fails says which it is."""

    def _price(self, name):
        found = super()._price(name)
        if isinstance(found, Failure):
            return replace(found, reason=FailureReason.NO_LOWERING, message=f"no rule for {name[:9]}")
        return found


def message(step, args, pricer, limit=None):
    with pytest.raises(ShardingError) as caught:
        search_sharding(step, args, mesh=mesh_of(x=8), pricer=pricer, memory_limit_bytes=limit)
    return str(caught.value)


class TestNothingRuns:
    def test_each_reason_is_given_once(self):
        said = message(*PATTERNS["mlp"](), FakePricer(fails=lambda name: name.startswith("segment 0")))
        assert said == (
            "segment 0 of 1 needs a strategy with a finite time, but all of them failed. They failed with: out "
            "of memory (it is said to be too large). Use more devices, or a smaller batch."
        )

    def test_of_the_segment_that_has_nothing_left(self):
        """One strategy of segment 0 fails as well, which is not why."""

        def fails(name):
            return name.startswith("segment 1:") or name == "segment 0: rows" or " and " in name

        said = message(*zoo_types("gpt-tiny", num_layers=2), FailingPricer(fails=fails))
        assert "segment 1 of 4 needs a strategy" in said
        assert said.endswith("They failed with: does not lower (no rule for segment 1).")

    def test_of_reshards(self):
        """The embedding is sharded by rows and the layers are not, so there is a reshard between them."""

        def fails(name):
            has_rows = "rows" in name
            runs = {"segment 0:": has_rows, "segment 1:": not has_rows, "segment 3:": True}
            return not runs.get(name[:10], False)

        said = message(*zoo_types("gpt-tiny", num_layers=2), FailingPricer(fails=fails))
        assert "segment 1 of 4 cannot be entered: every reshard from segment 0 to it failed. They" in said
        assert said.endswith("They failed with: does not lower (no rule for reshard f).")

    def test_only_the_first_few_are_given(self):
        class Talkative(FakePricer):
            def _price(self, name):
                return Failure(name=name, reason=FailureReason.NO_RUN, message=name)

        said = message(*PATTERNS["mlp"](), Talkative())
        assert said.count("does not run (") == 3
        assert said.endswith("; and 24 more.")

    def test_advice_against_too_little_memory_is_for_that_alone(self):
        said = message(*zoo_types("gpt-tiny", num_layers=2), FailingPricer(fails=lambda name: " and " in name))
        assert said.startswith("every segment runs alone, but none of the ")
        assert said.endswith("(no rule for segment 0).")

    def test_segments_run_but_only_alone(self):
        pricer = FakePricer(fails=lambda name: " and " in name)
        said = message(*zoo_types("gpt-tiny", num_layers=2), pricer)
        assert said.startswith("every segment runs alone, but none of the ")
        assert said.endswith(
            "They failed with: out of memory (it is said to be too large). Use more devices, or a smaller batch."
        )


class TestNothingFits:
    def test_it_fits_by_the_sum_but_not_together(self):
        """By the sum 100 bytes would do, but together all take twice as much."""
        pricer = ScaledPricer(lambda name: 2 if " and " in name else 1)
        said = message(*zoo_types("gpt-tiny", num_layers=2), pricer, 150)
        assert said == (
            "memory_limit_bytes=150 (0.00 MiB) is too little: the plans that were looked at need 200 bytes (0.00 MiB) "
            "or more; the smallest is a plan of the search. Raise the limit to at least that, use more devices, or a "
            "smaller batch. By the sum of their segments some plans fit, but none with its segments together; a larger "
            "num_finalists looks at more of them."
        )

    def test_the_minimum_is_of_all_ways_to_keep_state(self):
        """As used, 30 is the minimum, and a quarter of it with the state in parts."""
        pricer = ScaledPricer(lambda name: 0.25 if "zero 3" in name else 1)
        said = message(*PATTERNS["mlp"](), pricer, 6)
        assert said == (
            "memory_limit_bytes=6 (0.00 MiB) is too little: the plans that were looked at need 7 bytes (0.00 MiB) "
            "or more; the smallest is a plan of the search with zero 3's storage. Raise the limit to at least that, "
            "use more devices, or a smaller batch."
        )
        found = search_sharding(*PATTERNS["mlp"](), mesh=mesh_of(x=8), pricer=pricer, memory_limit_bytes=7)
        assert found.size_bytes == 7, "what it says is true"

    def test_a_plan_of_the_search_has_no_name(self):
        said = message(*PATTERNS["mlp"](), FakePricer(), 29)
        assert "need 30 bytes (0.00 MiB) or more; the smallest is a plan of the search. Raise" in said

    def test_the_smallest_is_priced_together_though_it_is_no_finalist(self):
        said = message(*zoo_types("gpt-tiny", num_layers=2), FakePricer(), 20)
        assert "need 100 bytes (0.00 MiB) or more; the smallest is a plan of the search. Raise" in said
        found = search_sharding(
            *zoo_types("gpt-tiny", num_layers=2), mesh=mesh_of(x=8), pricer=FakePricer(), memory_limit_bytes=100
        )
        assert found.size_bytes == 100, "what it says is true"


def test_a_search_that_gave_up_its_proof_says_so(monkeypatch):
    def search_chain(*args, **options):
        return replace(real(*args, **options), gap_s=0.25e-3)

    real = search_plans.search_chain
    monkeypatch.setattr(search_plans, "search_chain", search_chain)
    found = search_sharding(*PATTERNS["mlp"](), mesh=mesh_of(x=8), pricer=FakePricer())
    assert "the search did not prove its answer: by its prices, a plan that is 0.25 ms faster may fit" in found.notes


def test_finalists_vary_all_kinds_of_layers():
    """An MoE model has layers with experts and layers without."""
    analysis = analyse_model("moe-tiny")
    prices = price_segments(StepPrograms(analysis), pricer=FakePricer())
    chain = make_chain(prices)
    best = search_chain(chain, memory_limit_bytes=None).best
    found = choose_finalists(prices, chain, best, memory_limit_bytes=None, count=8)
    layers = {kind for kind, priced in prices.kinds.items() if len(priced.strategies) >= 27}
    varied = {
        segment.kind
        for plan in found
        for segment in analysis.segments
        if any(plan.assignment[block] != found[0].assignment[block] for block in segment.blocks)
    }
    assert layers <= varied
