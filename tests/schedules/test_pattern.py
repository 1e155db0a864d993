"""Every schedule that jaxquard makes can run, by a judge that shares no code with it."""

from hypothesis import given
from hypothesis import strategies as st

from jaxquard.schedules import check_rows
from tests.schedules import oracle
from tests.schedules.strategies import MANY, microbatch_counts, schedules


@MANY
@given(schedule=schedules(), num_microbatches=microbatch_counts)
def test_every_schedule_can_run(schedule, num_microbatches):
    rows = schedule.rows(num_microbatches)
    assert len(rows) == schedule.num_actors
    assert oracle.is_valid(oracle.to_texts(rows), schedule.num_stages, num_microbatches)
    check_rows(rows, num_stages=schedule.num_stages, num_microbatches=num_microbatches)


@MANY
@given(schedule=schedules(), num_microbatches=microbatch_counts)
def test_stages_are_where_actor_of_says(schedule, num_microbatches):
    for actor, row in enumerate(schedule.rows(num_microbatches)):
        assert all(schedule.actor_of(task.stage) == actor for task in row)


@MANY
@given(schedule=schedules(), num_microbatches=microbatch_counts, letter=st.sampled_from("FBIW"))
def test_each_phase_takes_the_microbatches_in_order(schedule, num_microbatches, letter):
    for row in oracle.to_texts(schedule.rows(num_microbatches)):
        for stage in {oracle.split(task)[0] for task in row}:
            order = [m for s, phase, m in map(oracle.split, row) if (s, phase) == (stage, letter)]
            assert order == sorted(order)


@MANY
@given(schedule=schedules(), num_microbatches=microbatch_counts)
def test_gradients_are_added_up_in_order(schedule, num_microbatches):
    """Also where whole and split backwards of a stage are mixed."""
    for row in oracle.to_texts(schedule.rows(num_microbatches)):
        for stage in {oracle.split(task)[0] for task in row}:
            order = [m for s, phase, m in map(oracle.split, row) if s == stage and phase in "BW"]
            assert order == list(range(num_microbatches))


@MANY
@given(schedule=schedules(max_actors=4))
def test_splits_backward_says_whether_there_is_an_input_gradient(schedule):
    phases = {oracle.split(task)[1] for row in oracle.to_texts(schedule.rows(12)) for task in row}
    assert schedule.splits_backward == ("I" in phases) == ("W" in phases)
