"""Measured computation and modelled collectives, on programs that XLA compiled for 8 H200s.

The compiled texts are of a layer of a GPT with 4096 features, compiled and timed on one H200 with collectives mocked.
"""

import pytest

from benchmarks.mock_gpu_report import read_programs
from jaxquard.cluster import load_cluster
from jaxquard.errors import HloError
from jaxquard.pricing.mock_gpu.combine_times import combine_times

NAMES = (
    "segment 1: columns contracted columns columns",
    "segment 1: rows rows columns contracted",
    "segment 1: columns rows contracted rows",
)
RECORDED = {name: program for name, program in read_programs().items() if name in NAMES}


@pytest.mark.parametrize("name", RECORDED)
def test_computation_is_what_was_measured(name):
    measured_s = min(RECORDED[name]["times_s"])
    walked = combine_times(RECORDED[name]["text"], compute_s=measured_s, cluster=load_cluster("h200-8"))
    assert walked.compute_s == pytest.approx(measured_s, rel=1e-3)
    assert walked.time_s == pytest.approx(measured_s + walked.communication_s, rel=1e-3)
    collectives_s = sum(one.time_s * one.times for one in walked.collectives)
    assert 0 < walked.communication_s < collectives_s


def test_longer_computation_hides_more():
    text, cluster = RECORDED["segment 1: rows rows columns contracted"]["text"], load_cluster("h200-8")
    walked = [combine_times(text, compute_s=compute_s, cluster=cluster) for compute_s in (1e-3, 1e-2, 1e-1)]
    exposed_s = [one.communication_s for one in walked]
    assert exposed_s == sorted(exposed_s, reverse=True)
    assert exposed_s[0] > exposed_s[2]


def test_slower_links_expose_more():
    text = RECORDED["segment 1: columns contracted columns columns"]["text"]
    near, far = (
        combine_times(text, compute_s=7e-3, cluster=load_cluster(name)).communication_s for name in ("h200-8", "a100-8")
    )
    assert near < far
    between = combine_times(text, compute_s=7e-3, cluster=load_cluster("h200-1x8")).communication_s
    assert between > 3 * near


_ASYNC = """HloModule hand, is_scheduled=true, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

ENTRY %main (x: f32[1048576], y: f32[1048576]) -> (f32[1048576], f32[1048576]) {
  %x = f32[1048576]{0} parameter(0)
  %y = f32[1048576]{0} parameter(1)
  %start = f32[1048576]{0} all-reduce-start(%x), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true, to_apply=%add
  %between = f32[1048576]{0} negate(%y)
  %done = f32[1048576]{0} all-reduce-done(%start)
  %after = f32[1048576]{0} negate(%done)
  ROOT %both = (f32[1048576]{0}, f32[1048576]{0}) tuple(%after, %between)
}
"""  # noqa: E501


def test_what_lies_between_start_and_done_hides_it():
    """Two operations of equal work share the measured time; the first of them hides its half of the collective."""
    cluster = load_cluster("h200-8")
    slow = combine_times(_ASYNC, compute_s=1e-6, cluster=cluster)
    collective_s = slow.collectives[0].time_s
    compute_s = collective_s  # Half of it lies between.
    walked = combine_times(_ASYNC, compute_s=compute_s, cluster=cluster)
    assert walked.communication_s == pytest.approx(collective_s / 2)
    assert walked.time_s == pytest.approx(1.5 * collective_s)
    assert combine_times(_ASYNC, compute_s=4 * collective_s, cluster=cluster).communication_s == pytest.approx(0)


def test_a_text_that_cannot_be_read_is_quoted():
    text = _ASYNC.replace("replica_groups={{0,1,2,3,4,5,6,7}}", "replica_groups=some")
    with pytest.raises(HloError, match=r"replica_groups=some"):
        combine_times(text, compute_s=1e-3, cluster=load_cluster("h200-8"))
