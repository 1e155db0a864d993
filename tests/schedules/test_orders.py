"""The orders of small schedules, written out.

ZB-V and DualPipeV are held against the orders of PyTorch's schedules; the others against the
rules that their papers state, worked out by hand.
"""

from jaxquard.schedules import (
    DualPipeV,
    EagerOneFOneB,
    GPipe,
    Interleaved,
    LoopedBFS,
    OneFOneB,
    ZeroBubbleH1,
    ZeroBubbleH2,
    ZeroBubbleV,
    write_csv,
)


def lines(schedule, num_microbatches):
    return write_csv(schedule.rows(num_microbatches)).splitlines()


def test_gpipe():
    """All forwards, then all backwards."""
    assert lines(GPipe(2), 3) == ["0F0,0F1,0F2,0B0,0B1,0B2", "1F0,1F1,1F2,1B0,1B1,1B2"]


def test_one_f_one_b():
    """Narayanan et al. 2021, section 2.2: warm-ups of p-s forwards, at 4 devices and 8 microbatches."""
    assert lines(OneFOneB(4), 8) == [
        "0F0,0F1,0F2,0F3,0B0,0F4,0B1,0F5,0B2,0F6,0B3,0F7,0B4,0B5,0B6,0B7",
        "1F0,1F1,1F2,1B0,1F3,1B1,1F4,1B2,1F5,1B3,1F6,1B4,1F7,1B5,1B6,1B7",
        "2F0,2F1,2B0,2F2,2B1,2F3,2B2,2F4,2B3,2F5,2B4,2F6,2B5,2F7,2B6,2B7",
        "3F0,3B0,3F1,3B1,3F2,3B2,3F3,3B3,3F4,3B4,3F5,3B5,3F6,3B6,3F7,3B7",
    ]


def test_fewer_microbatches_than_stages():
    assert lines(OneFOneB(4), 2) == [
        "0F0,0F1,0B0,0B1",
        "1F0,1F1,1B0,1B1",
        "2F0,2F1,2B0,2B1",
        "3F0,3B0,3F1,3B1",
    ]


def test_eager_one_f_one_b():
    """Warm-ups of 2(p-s)-1 forwards, as in Zhuang et al. 2023 and JaxPP's `Eager1F1B`."""
    assert lines(EagerOneFOneB(3), 6) == [
        "0F0,0F1,0F2,0F3,0F4,0B0,0F5,0B1,0B2,0B3,0B4,0B5",
        "1F0,1F1,1F2,1B0,1F3,1B1,1F4,1B2,1F5,1B3,1B4,1B5",
        "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3,2F4,2B4,2F5,2B5",
    ]


def test_interleaved():
    """Narayanan et al. 2021, section 2.2: 4 devices, 2 chunks each, 8 microbatches in groups of 4."""
    rows = lines(Interleaved(8, 4), 8)
    assert rows[0] == (
        "0F0,0F1,0F2,0F3,4F0,4F1,4F2,4F3,0F4,0F5,0F6,4B0,0F7,4B1,4F4,4B2,4F5,4B3,4F6,0B0,4F7,0B1,"
        "0B2,0B3,4B4,4B5,4B6,4B7,0B4,0B5,0B6,0B7"
    )
    assert rows[3] == (
        "3F0,3F1,3F2,3F3,7F0,7B0,7F1,7B1,7F2,7B2,7F3,7B3,3F4,3B0,3F5,3B1,3F6,3B2,3F7,3B3,7F4,7B4,"
        "7F5,7B5,7F6,7B6,7F7,7B7,3B4,3B5,3B6,3B7"
    )


def test_interleaved_drops_the_microbatches_too_many():
    whole, fewer = lines(Interleaved(4, 2), 4), lines(Interleaved(4, 2), 3)
    assert fewer == [",".join(task for task in line.split(",") if not task.endswith("3")) for line in whole]


def test_looped_bfs():
    assert lines(LoopedBFS(4, 2), 2) == ["0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1", "1F0,1F1,3F0,3F1,3B0,3B1,1B0,1B1"]


def test_zero_bubble_h1():
    """Qi et al. 2024, section 2.1: 1F1B's warm-up, stage s one more W behind than stage s-1."""
    assert lines(ZeroBubbleH1(3), 5) == [
        "0F0,0F1,0F2,0I0,0W0,0F3,0I1,0W1,0F4,0I2,0W2,0I3,0W3,0I4,0W4",
        "1F0,1F1,1I0,1F2,1I1,1W0,1F3,1I2,1W1,1F4,1I3,1W2,1I4,1W3,1W4",
        "2F0,2I0,2F1,2I1,2F2,2I2,2W0,2F3,2I3,2W1,2F4,2I4,2W2,2W3,2W4",
    ]


def test_zero_bubble_h2():
    """Qi et al. 2024, section 2.2: warm-ups of 2(p-s)-1 forwards."""
    assert lines(ZeroBubbleH2(3), 6) == [
        "0F0,0F1,0F2,0F3,0F4,0I0,0W0,0F5,0I1,0W1,0I2,0W2,0I3,0W3,0I4,0W4,0I5,0W5",
        "1F0,1F1,1F2,1I0,1F3,1I1,1F4,1I2,1W0,1F5,1I3,1W1,1I4,1W2,1I5,1W3,1W4,1W5",
        "2F0,2I0,2F1,2I1,2F2,2I2,2F3,2I3,2F4,2I4,2W0,2F5,2I5,2W1,2W2,2W3,2W4,2W5",
    ]


def test_zero_bubble_v():
    """The order of PyTorch's ZBV schedule for 2 ranks and 4 microbatches."""
    assert lines(ZeroBubbleV(4), 4) == [
        "0F0,0F1,0F2,3F0,3I0,3W0,3F1,3I1,3W1,0F3,0I0,0W0,3F2,3I2,3W2,0I1,0W1,3F3,3I3,3W3,0I2,0W2,0I3,0W3",
        "1F0,2F0,1F1,2F1,2I0,2W0,1F2,1I0,1W0,2F2,2I1,2W1,1F3,1I1,1W1,2F3,2I2,2W2,1I2,2I3,1I3,1W2,2W3,1W3",
    ]


def test_dual_pipe_v():
    """The order of PyTorch's DualPipeV schedule for 4 ranks and 10 microbatches: ranks 1 and 3."""
    rows = lines(DualPipeV(8), 10)
    assert rows[1] == (
        "1F0,1F1,1F2,1F3,1F4,6F0,1F5,6F1,6I0,6W0,6F2,6I1,6W1,6F3,1F6,6B2,6F4,1B0,1F7,6B3,6F5,1B1,1F8,6B4,"
        "6F6,1B2,1F9,6B5,6F7,1B3,6B6,6F8,1B4,6B7,6F9,1B5,6B8,1B6,6I9,1I7,6W9,1I8,1W7,1I9,1W8,1W9"
    )
    assert rows[3] == (
        "3F0,4F0,3F1,4F1,3F2,4F2,3F3,4F3,3F4,4B0,4F4,3B0,3F5,4B1,4F5,3B1,3F6,4B2,4F6,3B2,3F7,4B3,4F7,3B3,"
        "3F8,4B4,4F8,3B4,3F9,4B5,4F9,3B5,4B6,3B6,4B7,3B7,4I8,3I8,4I9,3I9,4W8,3W8,4W9,3W9"
    )
