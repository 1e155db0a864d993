"""Traces as the platforms write them, made by hand; `test_profile_runs` reads real ones."""

from types import SimpleNamespace

import pytest

from jaxquard.pricing.communication.read_trace import Instructions, read_trace
from jaxquard.pricing.measure.runs.profile_runs import share_of

PROGRAM = Instructions.of("""HloModule m, num_partitions=8

%body (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %all-reduce.1 = f32[8]{0} all-reduce(%p), replica_groups={}
}

%test (q: f32[8]) -> pred[] {
  %q = f32[8]{0} parameter(0)
  ROOT %less = pred[] custom-call(%q)
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %fusion = f32[8]{0} custom-call(%x)
  %side = f32[8]{0} custom-call(%x)
  %while = f32[8]{0} while(%fusion), condition=%test, body=%body
  %all-reduce-start = f32[8]{0} all-reduce-start(%while), replica_groups={}
  ROOT %all-reduce-done = f32[8]{0} all-reduce-done(%all-reduce-start)
}
""")


def event(name, start, end, **stats):
    return SimpleNamespace(name=name, start_ns=start, end_ns=end, duration_ns=end - start, stats=list(stats.items()))


def trace(**planes):
    """`trace(plane={line: events})`, with the run from 0 to 100 on the host."""
    python = {"python": [event("r", 0, 100)]}
    return SimpleNamespace(
        planes=[
            SimpleNamespace(
                name=name.replace("__", ":").replace("_", "/"),
                lines=[SimpleNamespace(name=line, events=events) for line, events in lines.items()],
            )
            for name, lines in {"_host__CPU": {}, **planes, "_python": python}.items()
        ]
    )


def thunk(name, start, end, device=0, token=None):
    return event(name, start, end, hlo_op=name, device_ordinal=device, **({"_p": token} if token else {}))


def share(data):
    return share_of(read_trace(data, {"r": PROGRAM})["r"])


def test_virtual_devices_wait_while_others_compute():
    lines = {
        "a": [thunk("fusion", 0, 30), thunk("all-reduce.1", 30, 90)],
        "b": [thunk("fusion", 30, 60, 1), thunk("all-reduce.1", 60, 90, 1)],
    }
    assert share(trace(_host__CPU=lines)) == pytest.approx(0.3)


def test_a_loop_does_not_hide_what_is_in_it():
    lines = {"a": [thunk("fusion", 0, 30), thunk("while", 30, 90), thunk("all-reduce.1", 40, 80)]}
    assert share(trace(_host__CPU=lines)) == pytest.approx(0.4)


def test_what_ends_in_another_thread_lasts_until_then():
    lines = {
        "a": [thunk("side", 0, 5, token=7), thunk("all-reduce.1", 10, 90)],
        "b": [event("end: side", 40, 41, _c=7)],
    }
    assert share(trace(_host__CPU=lines)) == pytest.approx(0.49)


def test_an_end_that_is_reported_late_is_when_a_user_starts():
    lines = {
        "a": [thunk("fusion", 0, 5, token=7), thunk("while", 10, 90), thunk("all-reduce.1", 10, 90)],
        "b": [event("end: fusion", 95, 96, _c=7)],
    }
    assert share(trace(_host__CPU=lines)) == pytest.approx(0.8)


def test_a_user_on_another_device_or_before_says_nothing():
    lines = {
        "a": [thunk("while", 0, 1, 1), thunk("fusion", 2, 5, 1, token=7), thunk("all-reduce.1", 10, 90, 1)],
        "b": [thunk("while", 10, 90, 0), event("end: fusion", 50, 60, _c=7)],
    }
    assert share(trace(_host__CPU=lines)) == pytest.approx(0.3)


def test_other_runs_and_other_events_do_not_count():
    lines = {
        "a": [thunk("fusion", 0, 30), thunk("all-reduce.1", 30, 90), thunk("all-reduce.1", 120, 190)],
        "b": [event("Execute", 0, 100), event("end: other", 1, 2)],
    }
    assert share(trace(_host__CPU=lines)) == pytest.approx(0.6)


def test_no_collective_was_seen():
    assert share(trace(_host__CPU={"a": [thunk("fusion", 0, 30)]})) is None
    assert share(trace()) is None


def test_devices_of_their_own_are_averaged_and_streams_overlap():
    data = trace(
        _device__GPU__0={
            "Stream #1(compute)": [event("gemm", 0, 50, hlo_op="fusion"), event("loop", 90, 95)],
            "Stream #2": [event("ncclDevKernel_AllReduce", 40, 80, hlo_op="all-reduce-start")],
            "XLA Modules": [event("jit_f", 0, 100)],
        },
        _device__GPU__1={
            "Stream #1(compute)": [event("gemm", 0, 50, hlo_op="while")],
            "Stream #2": [event("ncclDevKernel_AllReduce", 30, 70)],
        },
    )
    assert share(data) == pytest.approx((0.3 + 0.2) / 2)


def test_lines_of_a_tpu():
    ops = [
        event("%while = f32[8] while(...)", 0, 60),
        event("%fusion = f32[8] custom-call(...)", 0, 40),
        event("%all-reduce.1 = f32[8] all-reduce(...)", 40, 60),
        event("all-reduce-start", 60, 61),
        event("all-reduce-done", 80, 90),
    ]
    data = trace(_device__TPU__0={"XLA Ops": ops, "Steps": [event("0", 0, 100)]})
    assert share(data) == pytest.approx(0.31)
