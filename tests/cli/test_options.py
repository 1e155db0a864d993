"""Options mean the same on every command."""

import pytest

from jaxquard.cli.command import OLD_SPELLINGS, use_flags
from jaxquard.cli.exit_codes import UsageError
from jaxquard.cli.gemm.names import ALGORITHMS, DATAFLOWS, MODELS
from jaxquard.cli.options import choose_name, is_count, match_name, parse_numbers
from tests.cli.run_cli import commands, run

COMMANDS = commands()
# Files and folders that a command reads, or keeps for itself.
READ = {"--plan", "--data", "--from", "--cache", "--measured"}
OLD_FILES = [old for old, new in OLD_SPELLINGS.items() if new in ("--out", "--plot")]


def options(command):
    return {name: param for param in command.params for name in param.opts if name.startswith("--")}


def test_all_commands_are_known():
    assert {" ".join(path) for path in COMMANDS} == {
        "demo",
        "schedule",
        "simulate",
        "price",
        "plan search",
        "plan diff",
        "plan explain",
        "shard search",
        "shard show",
        "shard compare",
        "gemm tune",
        "gemm bench",
        "gemm overlap",
        "cluster show",
        "cluster calibrate",
        "checkpoint verify",
        "checkpoint show",
        "checkpoint list",
        "reproduce",
        "list",
        "run",
    }


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_answers_in_json(path):
    option = options(COMMANDS[path])["--json"]
    assert option.is_flag
    assert option.default is False
    assert option.help == "Print the answer as JSON on stdout, and nothing else there."


@pytest.mark.parametrize("path", COMMANDS)
def test_files_are_written_by_out_and_plot_alone(path):
    for name, option in options(COMMANDS[path]).items():
        metavar = option.metavar or ""
        if "FILE" not in metavar and "DIR" not in metavar:
            continue
        if "NAME|FILE" in metavar:  # A cluster: read.
            continue
        assert name in READ | {"--out", "--plot"}
        assert (name == "--plot") == (metavar == "FILE.svg")


def test_an_option_of_several_commands_is_one_option():
    for name in ("--json", "--cpu"):
        having = [options(command)[name] for command in COMMANDS.values() if name in options(command)]
        assert len({(option.is_flag, option.help) for option in having}) == 1, name


@pytest.mark.parametrize("path", COMMANDS)
def test_help_has_no_types_and_an_example(path):
    result = run(*path, "--help", columns=80)
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert not any(noise in result.stdout for noise in ("<bool>", "<str>", "<int>", "<float", "<path>", "x>=", "TEXT"))
    assert f"Example: jaxquard {' '.join(path)}" in result.stdout
    for name, option in options(COMMANDS[path]).items():
        assert option.help, name
        assert option.is_flag or option.metavar, name


@pytest.mark.parametrize(("command", "default"), [("search", "all devices"), ("compare", "all devices"), ("show", "8")])
def test_help_has_the_default_of_its_own_command(command, default):
    lines = " ".join(run("shard", command, "--help").stdout.split())
    assert f"Sizes of the mesh axes, the outer one first. [default: {default}]" in lines


@pytest.mark.parametrize("old", OLD_FILES)
def test_old_names_of_options_are_taken_and_not_shown(old, tmp_path):
    commands_with = {"--svg": "schedule", "--csv": "schedule", "--save": "gemm tune", "--trace": "demo"}
    path = tuple(commands_with[old].split())
    assert old not in options(COMMANDS[path])
    missing = tmp_path / "no" / "file"
    words = {"schedule": ("gpipe",), "gemm tune": ("--model", "gpt3"), "demo": ()}[" ".join(path)]
    for given in ((old, missing), (f"{old}={missing}",)):
        result = run(*path, *words, *given)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(f"error: cannot write {missing} (No such file or directory).")


def test_the_old_name_of_a_list():
    assert "--algorithm" not in options(COMMANDS["gemm", "overlap"])
    for given in (("--algorithm", "x"), ("--algorithm=x",), ("--algorithms", "x")):
        assert run("gemm", "overlap", *given).stderr.startswith("error: no GeMM algorithm is called 'x'.")


@pytest.mark.parametrize("path", COMMANDS)
def test_a_list_has_a_name_in_the_plural(path):
    lists = [name for name, option in options(COMMANDS[path]).items() if (option.metavar or "").endswith(",...")]
    assert all(name.endswith("s") for name in lists)


def test_after_two_dashes_there_are_no_options():
    result = run("schedule", "--", "--svg")
    assert result.stderr.startswith("error: no schedule is called '--svg'.")


@pytest.mark.parametrize("text", ["zero-bubble-v", "zero_bubble_v", "Zero_Bubble-V", " zero-bubble-v "])
def test_dashes_underscores_and_case(text):
    assert match_name(text, ["gpipe", "zero-bubble-v"]) == "zero-bubble-v"
    assert match_name("1D-TP", ["1d_tp"]) == "1d_tp"
    assert match_name("other", ["gpipe"]) == "other"


def test_a_name_that_is_not_there():
    with pytest.raises(UsageError, match=r"no schedule is called 'x'\. Use one of: gpipe, 1f1b\."):
        choose_name("x", ["gpipe", "1f1b"], kind="schedule")


@pytest.mark.parametrize("text", ["", "0", "-1", "1.5", "x", "9" * 5000, "²"])
def test_what_is_no_count(text):
    assert not is_count(text)
    with pytest.raises(UsageError, match=r"--mesh should be 2 whole numbers above 0, such as 8x4, but is"):
        parse_numbers(f"8x{text}", option="--mesh", example="8x4", count=2)


def test_numbers():
    assert parse_numbers("8X4", option="--mesh", example="8x4", count=2) == (8, 4)
    assert parse_numbers("1, 2,4", option="--slices", example="1,2,4", between=",") == (1, 2, 4)


def test_messages_of_the_library_name_flags():
    flags = {"--stages", "--memory-limit", "--dataflow"}
    assert (
        use_flags("num_stages=4 is odd; num_stages must be even", flags) == "--stages 4 is odd; --stages must be even"
    )
    assert use_flags("memory_limit_bytes=1000 (1 kB)", flags) == "--memory-limit 1000 (1 kB)"
    assert use_flags("dataflow='up' is not known", flags) == "--dataflow up is not known"
    assert use_flags("the dataflow of num_chips=3", flags) == "the dataflow of num_chips=3"


def test_names_that_stand_in_the_command_line_are_those_of_the_library():
    from jaxquard.gemm import ALGORITHMS as REGISTERED
    from jaxquard.gemm.problem import Dataflow

    assert tuple(ALGORITHMS) == tuple(REGISTERED)
    assert tuple(dataflow.value for dataflow in Dataflow) == DATAFLOWS
    assert MODELS == ("gpt3", "megatron-nlg")


@pytest.mark.parametrize("kind", ["models", "clusters", "schedules", "algorithms"])
def test_lists_have_a_line_on_each(kind):
    from jaxquard.cluster import preset_names
    from jaxquard.models import zoo
    from jaxquard.schedules import SCHEDULES

    names = {"models": zoo.model_names(), "clusters": preset_names(), "schedules": SCHEDULES, "algorithms": ALGORITHMS}
    lines = run("list", kind).stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(names[kind])
    assert all(len(line.split()) > 3 for line in lines)
    everything = run("list").stdout.splitlines()
    assert f"{kind}:" in everything
    assert all(f"  {line}" in everything for line in lines)


def test_a_list_that_is_not_there():
    result = run("list", "papers")
    assert (result.exit_code, result.stderr) == (
        2,
        "error: no list is called 'papers'. Use one of: models, clusters, schedules, algorithms.\n",
    )
