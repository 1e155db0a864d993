"""The event engine against hand calculation and simple laws."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxquard.simulate import Job, play_jobs, share_memory


def _ends(jobs, **options):
    return {span.name: span.end_s for span in play_jobs(jobs, **options).spans}


def test_dependencies_and_resources():
    jobs = [
        Job(name="a", resource="compute", time_s=2),
        Job(name="b", resource="compute", time_s=3),
        Job(name="c", resource="link", time_s=1, after=(0,)),
        Job(name="d", resource="compute", time_s=1, after=(2,)),
    ]
    assert _ends(jobs) == {"a": 2, "b": 5, "c": 3, "d": 6}


def test_chips_have_resources_of_their_own():
    jobs = [Job(name=f"{chip}", resource="compute", chip=chip, time_s=2) for chip in range(3)]
    timeline = play_jobs(jobs)
    assert (timeline.num_actors, timeline.time_s) == (3, 2)


def test_of_those_ready_the_first_listed_goes_first():
    jobs = [
        Job(name="late", resource="link", time_s=1, after=(2,)),
        Job(name="next", resource="link", time_s=1),
        Job(name="first", resource="compute", time_s=1),
        Job(name="last", resource="link", time_s=1),
    ]
    assert _ends(jobs) == {"next": 1, "first": 1, "late": 2, "last": 3}


def test_memory_is_shared():
    """Each wants 3 bytes a second of 4: both at 2/3 until the first ends at 1.5, then one at full speed."""
    jobs = [
        Job(name="short", resource="link", time_s=1, memory_bytes=3),
        Job(name="long", resource="compute", time_s=2, memory_bytes=6),
    ]
    assert _ends(jobs, memory_bandwidth_bytes_per_s=4) == pytest.approx({"short": 1.5, "long": 2.5})


def test_a_job_alone_can_be_bound_by_memory():
    assert _ends([Job(name="a", resource="x", time_s=1, memory_bytes=8)], memory_bandwidth_bytes_per_s=4) == {"a": 2}


def test_a_circle_is_refused():
    with pytest.raises(AssertionError, match="circle"):
        play_jobs(
            [Job(name="a", resource="x", time_s=1, after=(1,)), Job(name="b", resource="x", time_s=1, after=(0,))]
        )


def test_nothing_to_play():
    assert play_jobs([]).time_s == 0


@given(demands=st.lists(st.floats(0, 1e3), max_size=6), bandwidth=st.floats(1e-3, 1e3))
def test_sharing_is_fair_and_wastes_nothing(demands, bandwidth):
    speeds = share_memory(demands, bandwidth)
    granted = [speed * demand for speed, demand in zip(speeds, demands, strict=True)]
    assert all(0 < speed <= 1 for speed in speeds)
    assert sum(granted) == pytest.approx(min(bandwidth, sum(demands)))
    slowed = [got for got, speed in zip(granted, speeds, strict=True) if speed < 1]
    assert not slowed or max(granted) <= min(slowed) * (1 + 1e-9)


@st.composite
def _jobs(draw):
    jobs = []
    for position in range(draw(st.integers(1, 12))):
        after = draw(st.sets(st.integers(0, position - 1), max_size=3)) if position else set()
        jobs.append(
            Job(
                name=f"{position}",
                resource=draw(st.sampled_from(["compute", "rows", "columns"])),
                time_s=draw(st.floats(0.01, 10)),
                memory_bytes=draw(st.floats(0, 100)),
                after=tuple(after),
            )
        )
    return jobs


@given(jobs=_jobs(), bandwidth=st.floats(1, 1000))
def test_laws(jobs, bandwidth):
    timeline = play_jobs(jobs, memory_bandwidth_bytes_per_s=bandwidth)
    spans = {span.name: span for span in timeline.spans}
    assert len(spans) == len(jobs)
    for job in jobs:
        span = spans[job.name]
        assert span.time_s >= job.time_s * (1 - 1e-9)
        assert all(spans[f"{before}"].end_s <= span.start_s for before in job.after)
    for resource in {job.resource for job in jobs}:
        own = sorted((spans[job.name] for job in jobs if job.resource == resource), key=lambda span: span.start_s)
        assert all(first.end_s <= second.start_s for first, second in pairwise(own))
    assert timeline.time_s >= sum(job.memory_bytes for job in jobs) / bandwidth * (1 - 1e-9)
