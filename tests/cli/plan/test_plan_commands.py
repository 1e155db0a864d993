"""`jaxquard plan` and its subcommands."""

import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

import jax
import pytest

import jaxquard as jq
from jaxquard.cli.plan.find_loss import Adam, find_loss
from jaxquard.cli.plan.make_plan import make_plan
from jaxquard.cli.plan.options import parse_fixed, parse_forbidden
from jaxquard.errors import InfeasiblePlanError
from jaxquard.planner.record.plan_file import parse_plan_json
from tests.cli.run_cli import read_json, run, without_progress
from tests.planner.record.sample_plans import named_plan, traced_plan

LOSSES = Path(__file__).parent / "user_losses.py"
KEYS = ["time_s", "mfu", "memory_bytes", "stages", "schedule", "microbatches", "mesh", "baselines", "plan"]


@pytest.fixture
def planned(monkeypatch):
    """The calls of a planner that answers with a sample."""
    calls = []

    def plan_loss(loss, optimizer, args, **options):
        calls.append({"loss": loss, "optimizer": optimizer, "args": args, **options})
        return traced_plan()

    fake = ModuleType("jaxquard.planner.plan_step")
    fake.plan_loss = plan_loss
    monkeypatch.setitem(sys.modules, "jaxquard.planner.plan_step", fake)
    return calls


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with the user's module, in which commands run."""
    shutil.copy(LOSSES, tmp_path / "losses.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "losses", raising=False)
    return tmp_path


class TestModelsByName:
    WORDS = ("plan", "llama3:8b", "--cluster", "h100-8", "--global-batch", 64)

    def test_as_json(self):
        answer = read_json(run(*self.WORDS, "--json"))
        assert list(answer) == KEYS
        plan = parse_plan_json(answer["plan"], source="the answer")
        assert plan.model == "llama3:8b"
        assert (answer["time_s"], answer["stages"]) == (plan.time_s, len(plan.stages))
        assert answer["mesh"] == dict(plan.axes)
        assert answer["microbatches"] * plan.microbatch_size == 64
        assert 0.2 < answer["mfu"] < 0.7
        names = {baseline["name"]: baseline["ratio"] for baseline in answer["baselines"]}
        assert names["fsdp"] is None or names["fsdp"] >= 0.99

    def test_as_text_and_as_a_file(self, tmp_path):
        path = tmp_path / "plan.json"
        result = run(*self.WORDS, "--fix", "tensor=2", "--fix", "data=4", "--save", path)
        assert result.exit_code == 0, result.stderr
        assert without_progress(result.stderr) == f"wrote {path}\n"
        plan = jq.load_plan(path)
        assert dict(plan.axes) == {"data": 4, "tensor": 2}
        assert result.stdout == f"{plan}\n"

    def test_the_long_way_and_short_options(self):
        words = ("plan", "search", "--seq", 4096, "--batch", 32, "llama3:8b", "--cluster", "h100-8", "--json")
        answer = read_json(
            run(*words, "--max-microbatch", 8, "--forbid", "storage=zero 1", "--forbid", "storage=zero 3")
        )
        assert answer["plan"]["global_batch"] == 32
        assert answer["plan"]["microbatch_size"] <= 8
        assert answer["plan"]["storage"] in ("as used", "zero 2")

    @pytest.mark.parametrize(
        ("words", "code", "line"),
        [
            ("llama3:405b", 2, "error: llama3:405b needs --cluster, the hardware that it runs on."),
            ("bert:base", 2, "error: bert:base needs --cluster, the hardware that it runs on."),
            ("llama3:406b --cluster h100-8", 2, "error: no model is called 'llama3:406b'. The nearest are llama3:8b"),
            ("lama --cluster h100-8", 2, "error: no model is called 'lama'."),
            ("llama3:8b --cluster h100-8 --fix stages", 2, "error: --fix should be NAME=VALUE, such as schedule=1f1b"),
            (
                "llama3:8b --cluster h100-8 --fix stages=1 --fix stages=2",
                2,
                "error: --fix gives stages twice: 1 and 2.",
            ),
            ("llama3:8b --cluster h100-8 --fix mesh=8x2", 2, "error: --fix mesh=8x2 should be sizes by axis, such as"),
            ("llama3:8b --cluster h100-8 --pricer magic", 2, "error: no pricer is called 'magic'. Use one of: model, "),
            ("llama3:8b --cluster h100-8 --devices 4", 2, "error: --devices is for a plan on the devices here, but"),
            ("llama3:8b --pricer compile --cluster nope-8", 2, "error: "),
            ("gpt-tiny --pricer compile", 2, "error: --pricer compile prices for the chips of --cluster, but none is"),
            (
                "llama3:8b --cluster h100-8 --max-microbatch 4 --fix microbatch_size=8",
                2,
                "error: --fix microbatch_size=8 is more than --max-microbatch 4. Leave one out.",
            ),
            ("llama3:8b --cluster h100-8 --out no/plan.json", 2, "error: cannot write no/plan.json (No such file or"),
            ("llama3:8b --cluster h100-8 --memory-limit 1GB", 1, "error: no strategy fits 1.0 GB a chip of h100-8."),
        ],
    )
    def test_nonsense(self, words, code, line):
        result = run("plan", *words.split())
        assert (result.exit_code, result.stdout) == (code, "")
        assert without_progress(result.stderr).startswith(line)
        assert len(without_progress(result.stderr).splitlines()) == 1

    def test_a_smaller_one_of_the_same_shape(self):
        answer = read_json(run("plan", "llama3:405b", "--scale", 64, "--cluster", "h100-8", "--json"))
        assert answer["plan"]["model"] == "llama3:405b / 64"
        assert answer["memory_bytes"] < 10**10

    def test_the_default_batch_grows_with_the_cluster(self, monkeypatch):
        batches = []

        def plan_named(model, cluster, *, global_batch, **options):
            batches.append((cluster.num_chips, global_batch))
            return named_plan()

        monkeypatch.setattr("jaxquard.planner.named.plan_named.plan_named", plan_named)
        for cluster in ("h100-8", "h100-8x2048"):
            assert run("plan", "llama3:405b", "--cluster", cluster).exit_code == 0
        assert batches == [(8, 256), (16384, 2048)]


class TestInterrupts:
    def test_ctrl_c(self, monkeypatch):
        def interrupt(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr("jaxquard.planner.named.plan_named.plan_named", interrupt)
        result = run("plan", "llama3:8b", "--cluster", "h100-8")
        assert (result.exit_code, result.stdout) == (130, "")
        assert result.stderr.endswith("interrupted. Nothing is kept.\n")


class TestSearchedLosses:
    """With the planner itself."""

    WORDS = ("--cluster", "h100-2", "--memory-limit", "1GB")

    def test_as_json(self, here):
        words = ("losses:make_layers", "--batch", 32, *self.WORDS, "--out", "plan.json", "--json")
        answer = read_json(run("plan", *words))
        assert list(answer) == KEYS
        plan = parse_plan_json(answer["plan"], source="the answer")
        assert jq.load_plan("plan.json").stages == plan.stages
        assert (plan.model, plan.cluster, plan.num_devices) == ("losses:make_layers", "h100-2", 2)
        assert (plan.global_batch, plan.memory_limit_bytes) == (32, 10**9)
        assert answer["time_s"] == plan.time_s > 0
        assert answer["mfu"] == plan.mfu > 0
        assert answer["memory_bytes"] == plan.memory_bytes > 0
        assert (answer["stages"], answer["schedule"]) == (plan.num_stages, plan.schedule)
        assert (answer["microbatches"], answer["mesh"]) == (plan.num_microbatches, dict(plan.axes))
        assert {"data parallel", "fsdp"} <= {one["name"] for one in answer["baselines"]}

    def test_what_the_loss_is_over_its_rows_is_read(self, here):
        result = run("plan", "losses:make_sum", *self.WORDS, "--fix", "actors=1", "--fix", "microbatches=2")
        assert result.exit_code == 0, result.stderr
        assert "a sum over rows" in result.stdout
        refused = run("plan", "losses:make_sum", *self.WORDS, "--fix", "microbatches=2", "--loss-reduction", "mean")
        assert refused.exit_code == 2
        assert "square_sum is a sum over the rows: say --loss-reduction sum" in refused.stderr

    def test_a_loss_that_takes_a_key(self, here):
        words = ("plan", "losses:make_dropout", *self.WORDS, "--fix", "microbatches=4")
        assert read_json(run(*words, "--json"))["microbatches"] == 4

    def test_stages_begin_at_marks_unless_they_are_ignored(self, here):
        words = ("plan", "losses:make_layers", *self.WORDS, "--fix", "actors=2", "--fix", "stages=4")
        refused = run(*words)
        assert refused.exit_code == 2
        assert "can have 2 stages at most, but 4 were asked for: stages begin at the marks" in refused.stderr
        assert read_json(run(*words, "--ignore-marks", "--json"))["stages"] == 4

    def test_whole_tasks(self, here):
        words = ("plan", "losses:make_layers", *self.WORDS, "--fix", "actors=1", "--whole-tasks", 1)
        result = run(*words)
        assert result.exit_code == 0, result.stderr
        assert "the step: played with the prices of its whole tasks" in " ".join(result.stdout.split())


class TestLosses:
    def test_a_function_that_makes_one(self, planned, here):
        result = run(
            "plan", "losses:make_loss", "--cluster", "h100-8x2", "--global-batch", 24, "--fix", "schedule=1f1b"
        )
        assert result.exit_code == 0, result.stderr
        (call,) = planned
        assert call["args"][1].shape == (24, 4)
        assert call["cluster"].num_chips == 16
        assert (call["pricer"], call["fix"], call["name"]) == ("model", {"schedule": "1f1b"}, "losses:make_loss")
        assert result.stdout == f"{traced_plan()}\n"

    def test_limits_and_wishes_reach_the_planner(self, planned, here):
        words = (
            "--memory-limit 2GB --max-microbatch 4 --time-budget 9 --forbid layers.*.mlp=rows --devices 4 --cpu --json"
            " --loss-reduction sum --ignore-marks --whole-tasks 2"
        )
        answer = read_json(run("plan", "losses.py:mean_square", *words.split()))
        assert answer["stages"] == 2
        (call,) = planned
        assert call["memory_limit_bytes"] == 2 * 10**9
        assert (call["max_microbatch_size"], call["time_budget_s"], call["num_devices"]) == (4, 9.0, 4)
        assert (call["loss_reduction"], call["ignores_marks"], call["num_whole"]) == ("sum", True, 2)
        assert call["forbid"] == {"layers.*.mlp": ["rows"]}
        assert (call["pricer"], call["cluster"]) == ("model", None)
        assert call["args"][1].shape == (16, 4)

    def test_a_model_of_the_zoo(self, planned):
        result = run("plan", "gpt-tiny", "--cluster", "h100-8", "--batch", 4, "--pricer", "compile")
        assert result.exit_code == 0, result.stderr
        (call,) = planned
        params, batch = call["args"]
        assert all(leaf.shape[0] == 4 for leaf in jax.tree.leaves(batch))
        assert jax.eval_shape(call["loss"], params, batch).shape == ()
        assert call["pricer"] == "compile"

    @pytest.mark.parametrize(
        "options", [("--scale", 128), ("--scale", 128, "--pricer", "compile", "--cluster", "h100-8")]
    )
    def test_a_model_by_name_that_runs_here(self, planned, options):
        result = run("plan", "llama3:405b", *options)
        assert result.exit_code == 0, result.stderr
        (call,) = planned
        assert call["name"] == "llama3:405b / 128"
        assert call["pricer"] == ("model" if len(options) == 2 else "compile")
        params, batch = call["args"]
        assert jax.eval_shape(call["loss"], params, batch).shape == ()
        assert sum(leaf.size for leaf in jax.tree.leaves(params)) < 10**8

    @pytest.mark.parametrize(
        ("name", "options", "line"),
        [
            (
                "losses:nothing",
                (),
                "error: the module losses has no function 'nothing'. Write one that returns (loss, ",
            ),
            (
                "losses:makes_a_pair",
                (),
                "error: losses:makes_a_pair should give (loss, optimizer, (params, batch)): a ",
            ),
            ("losses:has_no_optimizer", (), "error: the optimizer of losses:has_no_optimizer should have init and"),
            ("losses:fails", (), "error: RuntimeError: the data is not there (losses.py:"),
            ("nowhere:loss", (), "error: there is no module 'nowhere' here"),
            ("nowhere.py:loss", (), "error: there is no file 'nowhere.py' here"),
            (
                "losses:makes_a_pair",
                ("--global-batch", 4),
                "error: losses:makes_a_pair is called as makes_a_pair(batch_size=4), but got an unexpected keyword "
                "argument 'batch_size'. Leave --global-batch out, or let it take batch_size.",
            ),
            ("losses:make_loss", ("--sequence-length", 4), "error: --sequence-length is for a model priced by its"),
            ("losses:make_loss", ("--loss-reduction", "men"), "error: no loss reduction is called 'men'. Use one"),
            (
                "llama3:8b",
                ("--loss-reduction", "sum"),
                "error: --loss-reduction is for a loss that is traced, and llam",
            ),
            ("llama3:8b", ("--ignore-marks",), "error: --ignore-marks is for a loss that is traced, and llama3:8b is"),
            ("llama3:8b", ("--whole-tasks", 1), "error: --whole-tasks is for a loss that is traced, and llama3:8b is"),
            ("losses:make_loss", ("--scale", 4), "error: --scale is for a model by name, and losses:make_loss has its"),
        ],
    )
    def test_nonsense(self, planned, here, name, options, line):
        result = run("plan", name, "--cluster", "h100-8", *options)
        assert result.exit_code == (1 if name == "losses:fails" else 2)
        assert result.stderr.startswith(line)

    def test_a_loss_without_its_optimizer(self, planned, here):
        (here / "losses.py").write_text("def loss(params, batch):\n    return 0.0\n")
        result = run("plan", "losses:loss", "--cluster", "h100-8")
        assert result.stderr.startswith(
            "error: losses:loss takes arguments, so it is taken for the loss itself, but its module has no optimizer "
            "and no args. Add `optimizer = ...` and `args = (params, batch)`; or"
        )

    def test_args_that_are_made_already(self, planned, here):
        with (here / "losses.py").open("a") as file:
            file.write("\nargs = ({'w': jnp.ones((4, 4))}, jnp.ones((8, 4)))\n")
        assert find_loss("losses:mean_square", batch_size=None).args[1].shape == (8, 4)
        result = run("plan", "losses:mean_square", "--cluster", "h100-8", "--global-batch", 4)
        assert result.stderr.startswith("error: --global-batch is given, but the module's args are made already.")

    def test_one_that_fits_nowhere(self, planned, monkeypatch, here):
        def refuse(*_, **__):
            raise InfeasiblePlanError("nothing fits in memory_limit_bytes=1000.")

        monkeypatch.setattr(sys.modules["jaxquard.planner.plan_step"], "plan_loss", refuse)
        result = run("plan", "losses:make_loss", "--cluster", "h100-8")
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr == "error: nothing fits in --memory-limit 1000.\n"


def test_the_optimizer_of_the_zoo_is_adam():
    optax = pytest.importorskip("optax")
    params = {"w": jax.numpy.array([1.0, -2.0, 3.0])}
    ours, theirs = Adam(), optax.adam(1e-3)
    states = [one.init(params) for one in (ours, theirs)]
    for factor in (1.0, -0.5, 2.0):
        grads = jax.tree.map(lambda leaf, factor=factor: factor * leaf, params)
        found, states[0] = ours.update(grads, states[0], params)
        wanted, states[1] = theirs.update(grads, states[1], params)
        assert jax.numpy.allclose(found["w"], wanted["w"], rtol=1e-5)


class TestSavedPlans:
    @pytest.fixture(autouse=True)
    def saved(self, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        traced_plan().save("a.json")
        traced_plan(num_microbatches=16, microbatch_size=2, time_s=0.07).save("b.json")

    def test_diff(self):
        result = run("plan", "diff", "a.json", "b.json")
        assert (result.exit_code, result.stderr) == (0, "")
        wanted = jq.diff(jq.load_plan("a.json"), jq.load_plan("b.json"), names=("a.json", "b.json"))
        assert result.stdout == f"{wanted}\n"

    def test_diff_as_json(self):
        answer = read_json(run("plan", "diff", "a.json", "b.json", "--json"))
        assert answer["is_same"] is False
        assert answer["differences"] == [{"part": "microbatches", "first": "8 of 4 rows", "second": "16 of 2 rows"}]
        assert answer["times_s"]["step"] == [0.0612, 0.07]

    def test_files_of_one_name_have_their_folders(self, tmp_path):
        (tmp_path / "other").mkdir()
        traced_plan().save("other/a.json")
        assert "other/a.json" in run("plan", "diff", "a.json", "other/a.json").stdout

    @pytest.mark.parametrize("part", [(), ("layer 3",), ("layers.*.mlp",), ("gpt.py:93",)])
    def test_explain(self, part):
        result = run("plan", "explain", "a.json", *part)
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout == f"{traced_plan().explain(*part)}\n"

    def test_explain_as_json(self):
        answer = read_json(run("plan", "explain", "a.json", "schedule", "--json"))
        assert answer["part"] == "schedule"
        assert answer["lines"][0] == "schedule: 1f1b"
        assert [one["alternative"] for one in answer["alternatives"]] == ["gpipe", "interleaved, 4 stages"]

    @pytest.mark.parametrize(
        ("words", "line"),
        [
            (("diff", "a.json"), "error: Missing argument 'SECOND.json'. See jaxquard plan diff --help."),
            (("diff", "a.json", "no.json"), "error: no.json cannot be read as a plan: No such file or directory."),
            (("explain", "a.json", "layer 9"), "error: the plan has no part 'layer 9'. Ask for 'layer 3' or"),
            (
                ("dif", "a.json", "b.json"),
                "error: No such command 'dif'. Did you mean 'diff'? See jaxquard plan --help.",
            ),
        ],
    )
    def test_nonsense(self, words, line):
        result = run("plan", *words)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith(line)
        assert len(result.stderr.splitlines()) == 1

    def test_a_strangers_file(self, tmp_path):
        content = json.loads((tmp_path / "a.json").read_text())
        (tmp_path / "a.json").write_text(json.dumps({**content, "num_devices": 7}))
        result = run("plan", "explain", "a.json")
        assert result.exit_code == 2
        assert result.stderr.startswith(
            "error: a.json is no whole plan: plan.num_devices should be 2 actors x 4 devices"
        )


def test_wishes_are_read():
    assert parse_fixed(["layers.*.mlp = columns", "mesh=data=4 x model=2"]) == {
        "layers.*.mlp": "columns",
        "mesh": {"data": 4, "model": 2},
    }
    assert parse_forbidden(["schedule=gpipe", "schedule=1f1b"]) == {"schedule": ["gpipe", "1f1b"]}
    assert parse_fixed(None) == parse_forbidden(()) == {}
    assert callable(make_plan)
