"""Folds have every item once, and say which items recur."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxquard.errors import PlanError
from jaxquard.intraop.segments.fold_repeats import Fold, fold_repeats
from jaxquard.planner.record.fold_blocks import find_layers
from tests.planner.record.sample_plans import named_plan, traced_plan


def expand(items, folds):
    return [item for fold in folds for item in items[fold.start : fold.start + fold.period] * fold.count]


@given(items=st.lists(st.sampled_from("abc"), max_size=40))
def test_folds_have_every_item_once(items):
    folds = fold_repeats(items)
    assert expand(items, folds) == items
    assert [fold.start for fold in folds] == [0, *(fold.stop for fold in folds)][: len(folds)]


@pytest.mark.parametrize(
    ("items", "folds"),
    [
        ("", []),
        ("a", [(0, 1, 1)]),
        ("aaaa", [(0, 1, 4)]),
        ("abcbcbcd", [(0, 1, 1), (1, 2, 3), (7, 1, 1)]),
        ("eaaabaaabaaabh", [(0, 1, 1), (1, 4, 3), (13, 1, 1)]),
    ],
)
def test_layers_are_found(items, folds):
    assert fold_repeats(items) == [Fold(start=start, period=period, count=count) for start, period, count in folds]


class TestLayers:
    def test_by_the_numbers_in_paths(self):
        layers = find_layers(traced_plan())
        assert layers == {number: list(range(1 + 5 * number, 6 + 5 * number)) for number in range(4)}

    def test_by_what_recurs_where_there_are_no_paths(self):
        plan = traced_plan()
        bare = replace(plan, stages=tuple(replace(stage, parameters=()) for stage in plan.stages))
        assert find_layers(bare) == find_layers(plan)

    def test_of_a_model_by_name(self):
        assert find_layers(named_plan()) == {number: [number] for number in range(126)}

    def test_of_a_step_without_any(self):
        stage = replace(traced_plan().stages[0], blocks=(0, 2), strategies=(("rows", "rows"), ("rows", "columns")))
        stage = replace(stage, lines=(), parameters=())
        assert find_layers(traced_plan(stages=(stage,))) == {}
        with pytest.raises(PlanError, match=r"the plan has no part 'layer 0'\. Ask for"):
            traced_plan(stages=(stage,)).explain("layer 0")
