"""The whole way with measured prices: search, save, load, place, run, compare."""

import re

import jax
import pytest
from typer.testing import CliRunner

import jaxquard as jq
from jaxquard.cli.main import app
from jaxquard.cli.shard.find_step import find_step
from jaxquard.pricing import MeasuredPricer
from tests.intraop.same_numbers import check_same
from tests.intraop.steps import mesh_of, zoo_step


def search(step, args, mesh):
    """With few runs; which plan wins is chance then."""
    with MeasuredPricer(mesh, cache=None, num_warmups=1, num_runs=2, max_runs=0) as pricer:
        return jq.search_sharding(step, args, mesh=mesh, pricer=pricer, num_finalists=1)


@pytest.mark.slow
def test_a_model_is_searched_saved_and_trained(tmp_path):
    # Not Adam: of a gradient that is rounding alone, as that of the bias of keys, it makes a step as large as others.
    step, (state, batch) = zoo_step("gpt-tiny", num_layers=1, dropout_rate=0.1)
    found = search(step, (state, batch), mesh_of(x=8))
    assert len(found.segments) > 1
    assert not [note for note in found.notes if note.startswith("failed")]
    found.save(tmp_path / "plan.json")
    plan = jq.load_sharding(tmp_path / "plan.json")
    assert plan.choices == found.choices
    sharded, plain = plan.apply(step), jax.jit(step)
    placed = plan.shard(state)
    for _ in range(2):
        placed, metrics = sharded(placed, batch)
        state, wanted = plain(state, batch)
        check_same((placed, metrics), (state, wanted))


@pytest.mark.slow
def test_a_plan_of_a_model_is_compared_on_the_command_line(tmp_path):
    made = find_step("gpt-tiny", batch_size=8)
    search(made.train_step, made.args, mesh_of(devices=8)).save(tmp_path / "plan.json")
    words = ["shard", "compare", "gpt-tiny", "--batch-size", "8", "--plan", str(tmp_path / "plan.json")]
    result = CliRunner().invoke(app, words, env={"COLUMNS": "140", "NO_COLOR": "1", "FORCE_COLOR": None})
    assert result.exit_code == 0, result.stderr
    for name in ("this one", "data parallel", "zero 3", "megatron, sequence parallel", "volume"):
        assert re.search(rf"│ {name} +│ +[\d.]+ ms │ +[\d.]+ ms │", result.stdout)
