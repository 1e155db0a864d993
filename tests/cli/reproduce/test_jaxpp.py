"""`jaxquard reproduce jaxpp`: files, the table, and what it refuses."""

import json

import pytest

from jaxquard.cli.exit_codes import USAGE
from tests.cli.run_cli import run


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    folder = tmp_path_factory.mktemp("jaxpp")
    return folder, run("reproduce", "jaxpp", "--out", folder)


@pytest.mark.slow
def test_the_page_the_numbers_and_the_table(reproduced):
    """Slow: the library's own test runs the same; the refusal below covers the command coarsely."""
    folder, result = reproduced
    assert result.exit_code == 0
    assert "JaxPP (MLSys 2025)" in (folder / "jaxpp.html").read_text()
    content = json.loads((folder / "jaxpp.json").read_text())
    assert content["schema"] == "jaxquard.reproduce.jaxpp"
    assert "of 13 headlines reproduce" in result.stdout
    assert "9.22 s" in result.stdout


def test_options_of_cfp_are_refused(tmp_path):
    result = run("reproduce", "jaxpp", "--out", tmp_path, "--quick")
    assert (result.exit_code, result.stdout) == (USAGE, "")
    assert result.stderr.startswith("error: --quick can only be given with cfp. Leave out what is not for jaxpp.")
