from pathlib import Path

import hypothesis
import jax
import pytest

from tests import conftest
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
