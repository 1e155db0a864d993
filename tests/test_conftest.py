from pathlib import Path

import hypothesis
import jax
import pytest

from tests import conftest
from tests.few_examples import few_examples
from tests.golden import check_golden


def test_eight_devices():
    assert jax.device_count("cpu") == 8


def test_the_profile_is_fixed(pytestconfig):
    if pytestconfig.getoption("--hypothesis-profile") not in (None, "ci"):
        pytest.skip("another profile was asked for")
    assert hypothesis.settings().derandomize
    assert hypothesis.settings().max_examples == 20


def test_golden_texts_are_compared_and_updated(tmp_path):
    path = tmp_path / "golden" / "text.txt"
    with pytest.raises(AssertionError, match=r"text\.txt does not exist.*--update-golden"):
        check_golden("first", path, update=False)
    check_golden("first", path, update=True)
    assert path.read_text() == "first\n"
    check_golden("first\n", path, update=False)
    with pytest.raises(AssertionError, match=r"differs from .*text\.txt"):
        check_golden("second", path, update=False)


def test_quick_tests_are_named_by_files_that_exist():
    folder = Path(__file__).parent
    found = [path.relative_to(folder).as_posix() for path in folder.rglob("test_*.py")]
    assert not [start for start in conftest._QUICK if not any(name.startswith(start) for name in found)]


class Case:
    """A test as pytest collects it, as far as `thin` looks at it."""

    def __init__(self, number, **marks):
        self.name, self.marks = f"test_it[{number}]", marks
        self.nodeid = f"test_file.py::{self.name}"

    def get_closest_marker(self, name):
        return self.marks.get(name)

    def add_marker(self, name):
        self.marks[name] = pytest.mark.slow


@pytest.mark.parametrize(("every", "num_left"), [(2, 4), (3, 3), (8, 1), (100, 1)])
def test_one_in_so_many_cases_is_left_of_those_that_are_not_slow(every, num_left):
    cases = [Case(number, thin=pytest.mark.thin(every)) for number in range(8)]
    slow = [Case(number, thin=pytest.mark.thin(every), slow=pytest.mark.slow) for number in range(8, 40)]
    conftest._thin_out([*cases, *slow])
    assert sum("slow" not in case.marks for case in cases) == num_left


def test_few_examples_are_many_under_a_longer_profile(pytestconfig):
    if pytestconfig.getoption("--hypothesis-profile") not in (None, "ci"):
        pytest.skip("another profile was asked for")
    assert few_examples(6).max_examples == 6
    hypothesis.settings.load_profile("many")
    try:
        assert few_examples(6).max_examples == 200
    finally:
        hypothesis.settings.load_profile("ci")
