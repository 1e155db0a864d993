"""CSV: what PyTorch writes is read, what is written is read back, and bad cells are pointed at."""

import pytest
from hypothesis import given

from jaxquard.errors import ScheduleError
from jaxquard.schedules import GPipe, read_csv, write_csv
from tests.schedules.strategies import MANY, microbatch_counts, schedules


@MANY
@given(schedule=schedules(), num_microbatches=microbatch_counts)
def test_round_trip(schedule, num_microbatches):
    rows = schedule.rows(num_microbatches)
    assert read_csv(write_csv(rows)) == rows


def test_text():
    assert write_csv(GPipe(2).rows(2)) == "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n"


def test_blank_cells_and_lines_are_skipped():
    assert read_csv("0F0,0F1,,,0B0, 0B1\n\n,1F0,1F1,1B0,1B1,\n") == GPipe(2).rows(2)


def test_an_actor_without_tasks_keeps_its_line():
    rows = (*GPipe(1).rows(1), (), ())
    assert write_csv(rows) == "0F0,0B0\n,\n,\n"
    assert read_csv(write_csv(rows)) == rows


def test_quoted_cells_of_a_spreadsheet():
    assert read_csv('"0F0","0B0"\r\n') == GPipe(1).rows(1)


def test_an_overlapping_pair_becomes_two_tasks():
    (row,) = read_csv("0F0,(0F1;0B0)OVERLAP_F_B,0B1")
    assert [str(task) for task in row] == ["0F0", "0F1", "0B0", "0B1"]


def test_files(tmp_path):
    path = tmp_path / "order.csv"
    path.write_text(write_csv(GPipe(2).rows(3)))
    assert read_csv(path) == read_csv(str(path)) == GPipe(2).rows(3)


def test_a_missing_file(tmp_path):
    with pytest.raises(ScheduleError) as caught:
        read_csv(tmp_path / "none.csv")
    assert str(caught.value) == (
        f"cannot read the schedule {tmp_path}/none.csv (No such file or directory). Give the path of a "
        "CSV with a line of tasks, like 0F0,0F1,0B0, for each actor."
    )


def test_a_file_that_is_not_text(tmp_path):
    path = tmp_path / "picture.csv"
    path.write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(ScheduleError, match=r"picture.csv \(not text\)"):
        read_csv(path)


def test_a_bad_cell_is_pointed_at():
    with pytest.raises(ScheduleError, match=r"line 3, cell 2: '1G0' is not a task. Write stage, phase and microbatch"):
        read_csv("0F0,0B0\n\n1F0,1G0\n")


def test_communication_is_refused():
    with pytest.raises(ScheduleError) as caught:
        read_csv("0F0,0SEND_F0,0B0")
    assert str(caught.value) == (
        "line 1, cell 2: '0SEND_F0' is communication, which jaxquard places itself. Save the schedule in "
        "PyTorch's compute-only form (format='compute_only')."
    )
