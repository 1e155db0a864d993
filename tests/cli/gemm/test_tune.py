"""`jaxquard gemm tune`: its table, its JSON, its plan file, and what it refuses."""

import json

import pytest

from jaxquard.cluster import load_cluster, save_cluster
from jaxquard.gemm import GemmProblem, autotune, gpt3, load_plan, transformer_block
from tests.cli.run_cli import read_json
from tests.cli.run_cli import run as run_cli

LAYERS = ("--layers", "4096x12288,12288x4096", "--rows", 16384, "--chips", 16)


def run(*words):
    return run_cli("gemm", "tune", *words)


def test_a_model():
    result = run("--model", "gpt3", "--chips", 256)
    assert result.exit_code == 0
    assert result.stdout == str(autotune(gpt3(), "tpu-v4", 256)) + "\n"
    assert result.stdout.startswith("meshslice on 256 chips of tpu-v4: the best 9 of 9 meshes\n")


def test_another_model_with_other_rows_blocks_and_algorithm():
    result = run(
        "--model", "megatron-nlg", "--rows", 65536, "--blocks", 2, "--chips", 64, "--algorithm", "wang",
        "--keep", 2, "--recompute",
    )  # fmt: skip
    problem = transformer_block(20480, num_rows=65536, num_blocks=2)
    assert result.stdout == str(autotune(problem, "tpu-v4", 64, "wang", keep=2, recompute=True)) + "\n"


def test_layers_json_and_plan(tmp_path):
    path = tmp_path / "plan.json"
    save_cluster(load_cluster("h200"), tmp_path / "mine.toml")
    result = run(*LAYERS, "--cluster", tmp_path / "mine.toml", "--json", "--out", path)
    content = read_json(result)
    assert (content["cluster"], content["num_chips"]) == ("h200", 16)
    times_s = [row["time_s"] for row in content["table"]]
    assert times_s == sorted(times_s)
    assert json.loads(path.read_text()) == content["table"][0]["plan"]
    plan = load_plan(path)
    assert [layer.name for layer in plan.layers] == ["fc1", "fc2"]
    assert result.stderr == f"wrote {path}\n"
    assert isinstance(gpt3(), GemmProblem)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give either --model (gpt3, megatron-nlg) or --layers, say --layers 12288x49152,49152x12288."),
        (("--model", "gpt3", *LAYERS), "give either --model"),
        (("--model", "gpt5"), "no model is called 'gpt5'. Use one of: gpt3, megatron-nlg; or give --layers."),
        (("--layers", "64x64"), "--layers needs --rows, the batch times the sequence. Add, say, --rows 262144."),
        (("--layers", "64x64,64", "--rows", 64), "--layers should be sizes such as 12288x49152,49152x12288, but has"),
        ((*LAYERS, "--algorithm", "magic"), "no GeMM algorithm is called 'magic'. Use one of: meshslice, "),
        ((*LAYERS, "--cluster", "h300"), "'h300' is neither a cluster of the package nor a file."),
        ((*LAYERS[:-1], 5000), "--chips should be from 1 to the 4096 of tpu-v4, found 5000."),
        ((*LAYERS, "--out", "/no/such/folder/plan.json"), "cannot write /no/such/folder/plan.json"),
    ],
)  # fmt: skip
def test_refused(words, message):
    result = run(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {message}")


def test_a_number_of_chips_that_divides_nothing_is_answered_with_those_that_do():
    result = run("--model", "gpt3", "--chips", 7)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(
        "error: --chips is 7, but no mesh of 7 chips divides the layers for meshslice (1x7: "
    )
    assert result.stderr.endswith("Use --chips 6 or 8, or pad the layers.\n")


def test_no_flag_is_made_of_what_stands_in_a_file(tmp_path):
    result = run("--model", "gpt3", "--chips", 100000)
    assert result.exit_code == 2
    assert result.stderr.count("--chips") == 1
    assert result.stderr.endswith("Ask for fewer, or raise the number of chips in the cluster's file.\n")
    (tmp_path / "mine.toml").write_text("num_chip = 4\n")
    result = run("--model", "gpt3", "--cluster", tmp_path / "mine.toml")
    assert result.exit_code == 2
    assert "the unknown key num_chip" in result.stderr
    assert ", num_chips, " in result.stderr
    assert "--" not in result.stderr
