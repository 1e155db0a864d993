"""Folds have every item once, and say which items recur."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxquard.planner.record.fold_blocks import Fold, find_layers, fold_repeats
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


def test_the_layers_of_plans():
    assert find_layers(traced_plan()) == Fold(start=1, period=5, count=4)
    assert find_layers(named_plan()) == Fold(start=0, period=1, count=126)
