"""Schedules as values: what they print, compare and refuse."""

import ast
from pathlib import Path

import pytest

import jaxquard.schedules
from jaxquard.errors import ScheduleError
from jaxquard.schedules import (
    SCHEDULES,
    Custom,
    DualPipeV,
    GPipe,
    Interleaved,
    LoopedBFS,
    OneFOneB,
    ZeroBubbleH1,
    ZeroBubbleV,
)


def test_repr_is_what_the_user_wrote():
    assert repr(OneFOneB(4)) == "OneFOneB(4)"
    assert repr(Interleaved(8, 4)) == "Interleaved(8, 4)"
    assert repr(Interleaved(num_stages=8, num_actors=4)) == "Interleaved(8, 4)"
    assert eval(repr(LoopedBFS(6, 3))) == LoopedBFS(6, 3)


def test_equal_numbers_make_equal_schedules():
    assert OneFOneB(4) == OneFOneB(4)
    assert len({OneFOneB(4), OneFOneB(4), OneFOneB(5), GPipe(4)}) == 3
    assert Interleaved(8, 4) != Interleaved(8, 2)


def test_actors_of_stages():
    assert [OneFOneB(3).actor_of(stage) for stage in range(3)] == [0, 1, 2]
    assert [Interleaved(6, 3).actor_of(stage) for stage in range(6)] == [0, 1, 2, 0, 1, 2]
    assert [ZeroBubbleV(6).actor_of(stage) for stage in range(6)] == [0, 1, 2, 2, 1, 0]
    assert (OneFOneB(3).num_actors, Interleaved(6, 3).num_actors, ZeroBubbleV(6).num_actors) == (3, 3, 3)


def test_which_schedules_split_the_backward():
    split = {name for name, schedule in SCHEDULES.items() if "zero" in name or "dual" in name}
    made = [
        schedule(4, 2) if name in ("interleaved", "looped-bfs") else schedule(4) for name, schedule in SCHEDULES.items()
    ]
    assert {schedule.name for schedule in made if schedule.splits_backward} == split


@pytest.mark.parametrize("count", [0, -3, 2.0, True, "4"])
def test_counts_must_be_whole_and_positive(count):
    with pytest.raises(ScheduleError) as caught:
        OneFOneB(count)
    expected = f"OneFOneB needs num_stages to be a whole number, 1 or more, but it is {count!r}."
    assert str(caught.value) == f"{expected} Pass such a number."


def test_counts_of_actors_and_microbatches_too():
    with pytest.raises(
        ScheduleError, match="Interleaved needs num_actors to be a whole number, 1 or more, but it is 0"
    ):
        Interleaved(4, 0)
    with pytest.raises(
        ScheduleError, match="GPipe needs num_microbatches to be a whole number, 1 or more, but it is 0"
    ):
        GPipe(2).rows(0)


def test_stages_must_divide_among_actors():
    with pytest.raises(ScheduleError) as caught:
        Interleaved(6, 4)
    assert str(caught.value) == (
        "Interleaved(6, 4) gives every actor as many stages, but 6 stages do not divide among 4 actors. "
        "Use num_stages=4 or 8, or num_actors=1, 2, 3, 6."
    )
    with pytest.raises(ScheduleError, match="Use num_stages=4, or num_actors=1, 3"):
        LoopedBFS(3, 4)


def test_a_v_needs_an_even_number_of_stages():
    with pytest.raises(ScheduleError) as caught:
        ZeroBubbleV(5)
    assert str(caught.value) == (
        "ZeroBubbleV(5) puts two stages on each actor, so it needs an even number of stages, but 5 is odd. "
        "Use num_stages=4 or num_stages=6."
    )
    with pytest.raises(ScheduleError, match=r"Use num_stages=2\."):
        DualPipeV(1)


def test_a_missing_number_of_actors_is_not_guessed():
    with pytest.raises(TypeError, match="num_actors"):
        Interleaved(8)


def test_positional_construction_of_the_others():
    assert ZeroBubbleH1(2).num_stages == 2
    assert Custom(["0F0,0B0", "1F0,1B0"]).num_actors == 2


def test_schedules_need_no_jax():
    folder = Path(jaxquard.schedules.__file__).parent
    for path in folder.glob("*.py"):
        imported = [
            name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in ([node.module] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
        ]
        assert not [name for name in imported if name.split(".")[0] in ("jax", "numpy")], path
