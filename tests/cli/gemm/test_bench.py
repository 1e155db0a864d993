"""`jaxquard gemm bench`: its table, its JSON, and what it refuses."""

import re

import pytest

from tests.cli.run_cli import read_json
from tests.cli.run_cli import run as run_cli

SMALL = ("--cpu", "--m", 64, "--k", 64, "--n", 64, "--rounds", 1, "--algorithms", "collective,1d_tp")


def run(*words):
    return run_cli("gemm", "bench", *words)


def test_table():
    result = run(*SMALL)
    assert result.exit_code == 0, result.stderr
    assert "(64, 64, 64) in bf16 on 8 x cpu; plain is lhs @ rhs under jit on the same mesh" in result.stdout
    for mesh in ("1x8", "2x4", "4x2", "8x1"):
        assert re.search(rf"plain +│ +{mesh} │ +1 │ +1\.00 │", result.stdout)
        assert re.search(rf"collective +│ +{mesh} │", result.stdout)
    assert len(re.findall("1d_tp", result.stdout)) == 1


def test_json_says_what_was_left_out():
    result = run(*SMALL[:-1], "meshslice", "--slices", 64, "--json")
    content = read_json(result)
    assert {one["algorithm"] for one in content if not one["why_not"]} == {"plain"}
    left_out = [one for one in content if one["why_not"]]
    assert {tuple(one["mesh_shape"]) for one in left_out} == {(1, 8), (2, 4), (4, 2), (8, 1)}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--slices", "1,two"), "--slices should be whole numbers above 0, such as 1,2,4, but is '1,two'."),
        (("--algorithms", "magic"), "no GeMM algorithm is called 'magic'. Use one of: meshslice, "),
        (("--dataflow", "up"), "no dataflow is called 'up'. Use one of: os, ls, rs."),
    ],
)
def test_refused(words, message):
    result = run("--cpu", *words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {message}")
