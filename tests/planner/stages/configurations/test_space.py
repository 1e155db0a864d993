"""The space of configurations: complete, valid, and narrowed by wishes."""

import math

import pytest

from jaxquard.errors import PlanError, ScheduleError
from jaxquard.planner.record.plan import Recompute
from jaxquard.planner.stages.configurations.space import PlanSpace, list_configurations
from jaxquard.planner.stages.schedule_profile import profile_schedule

SMALL = PlanSpace(num_devices=8, global_batch=16, num_segments=6)


def test_every_configuration_can_be_built():
    found = list_configurations(SMALL)
    assert len(set(found)) == len(found)
    for one in found:
        assert one.num_actors * math.prod(one.mesh.values()) == 8
        assert one.num_microbatches * one.microbatch_size == 16
        assert one.microbatch_size % one.mesh["data"] == 0
        assert one.num_actors <= one.num_stages <= 6
        profile = profile_schedule(one.shape)
        assert (profile.num_actors, profile.num_stages) == (one.num_actors, one.num_stages)
        if one.schedule == "interleaved":
            assert one.num_microbatches % one.num_actors == 0
        if math.prod(one.mesh.values()) == 1:
            assert one.storage == "as used"


def test_small_spaces_are_complete():
    space = PlanSpace(
        num_devices=2,
        global_batch=2,
        num_segments=4,
        schedules=("1f1b", "interleaved"),
        recomputes=(Recompute.NONE,),
        storages=("as used",),
    )
    found = {
        (one.num_actors, one.num_stages, *one.mesh.values(), one.num_microbatches, one.schedule)
        for one in list_configurations(space)
    }
    assert found == {
        *((1, 1, 1, 2, microbatches, "none") for microbatches in (1, 2)),
        (1, 1, 2, 1, 1, "none"),
        *((2, 2, 1, 1, microbatches, "1f1b") for microbatches in (1, 2)),
        (2, 4, 1, 1, 2, "interleaved"),
    }


def test_model_axes_stay_inside_of_a_host():
    inside = list_configurations(PlanSpace(num_devices=16, global_batch=16, num_segments=1, devices_per_host=4))
    assert {one.mesh["model"] for one in inside} == {1, 2, 4}
    beyond = list_configurations(
        PlanSpace(num_devices=16, global_batch=16, num_segments=1, devices_per_host=4, spans_hosts=True)
    )
    assert {one.mesh["model"] for one in beyond} == {1, 2, 4, 8, 16}


def test_two_model_axes_make_a_torus_for_products():
    found = list_configurations(PlanSpace(num_devices=8, global_batch=8, num_segments=1, num_model_axes=2))
    assert {one.axes for one in found if "rows" in one.mesh} == {
        (("data", 2), ("rows", 2), ("columns", 2)),
        (("data", 1), ("rows", 2), ("columns", 4)),
        (("data", 1), ("rows", 4), ("columns", 2)),
    }


def test_wishes_narrow_the_space():
    wishes = {
        "schedule": "1f1b",
        "stages": 4,
        "recompute": Recompute.FULL,
        "model": 2,
        "microbatches": 8,
        "storage": "as used",
    }
    space = PlanSpace(num_devices=8, global_batch=16, num_segments=6, fixed=wishes)
    (found,) = list_configurations(space)
    assert (found.num_actors, found.mesh, found.microbatch_size) == (4, {"data": 1, "model": 2}, 2)
    forbidden = PlanSpace(
        num_devices=8, global_batch=16, num_segments=6, forbidden={"schedule": ("none", "1f1b"), "data": (1,)}
    )
    left = list_configurations(forbidden)
    assert left
    assert not {one.schedule for one in left} & {"none", "1f1b"}
    assert 1 not in {one.mesh["data"] for one in left}


def test_rows_of_a_replica_are_limited():
    space = PlanSpace(
        num_devices=8,
        global_batch=16,
        num_segments=6,
        max_microbatch_size=2,
        min_microbatch_size=2,
        accepts=lambda one: one.num_actors == 1,
    )
    found = list_configurations(space)
    assert {one.microbatch_size // one.mesh["data"] for one in found} == {2}
    assert {one.num_actors for one in found} == {1}


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (
            PlanSpace(num_devices=8, global_batch=16, num_segments=6, fixed={"stages": 7}),
            "fix stages=7 cannot be met: 8 devices, 16 rows and 6 segments allow stages to be 1, 2, 4, 6",
        ),
        (
            PlanSpace(
                num_devices=8,
                global_batch=12,
                num_segments=12,
                fixed={"schedule": "interleaved", "microbatches": 6, "actors": 4},
            ),
            "fix schedule='interleaved' cannot be met beside the wishes for microbatches, actors",
        ),
        (
            PlanSpace(num_devices=8, global_batch=3, num_segments=1, min_microbatch_size=8),
            "no configuration spreads 3 rows and 1 segments over 8 devices",
        ),
        (
            PlanSpace(num_devices=8, global_batch=16, num_segments=6, fixed={"stages": 7, "microbatches": 5}),
            "no configuration meets all wishes at once",
        ),
    ],
)
def test_wishes_that_cannot_be_met_are_refused(space, message):
    with pytest.raises(PlanError, match=message):
        list_configurations(space)


def test_unknown_schedules_are_refused():
    with pytest.raises(ScheduleError, match="no schedule is called '2f2b'"):
        list_configurations(PlanSpace(num_devices=2, global_batch=2, num_segments=2, schedules=("2f2b",)))


def test_a_configuration_says_what_it_is():
    found = list_configurations(PlanSpace(num_devices=2, global_batch=2, num_segments=2, fixed={"stages": 2}))
    assert str(found[0]) == (
        "2 stages on 2 actors of data 1 x model 1, 1f1b, 2 microbatches of 1, recompute none, as used"
    )
    assert found[0].part("rows") == 1
