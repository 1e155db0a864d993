"""The text of a plan, its explanations and comparisons, held against files that people read."""

import json
from dataclasses import replace

import pytest

import jaxquard as jq
from jaxquard.errors import PlanError
from jaxquard.planner.record.plan_data import PlanAlternative
from tests.planner.record.sample_plans import MB, named_plan, traced_plan


@pytest.mark.parametrize("plan", [traced_plan(), named_plan()], ids=["traced", "named"])
def test_the_text_of_a_plan(plan, golden):
    golden(str(plan))
    assert max(map(len, str(plan).splitlines())) <= 100


def test_the_text_says_how_stages_were_found():
    assert "left out by bounds, 314" in str(traced_plan())
    assert "\nstages proven the fastest by the estimate\n" in str(traced_plan())
    found = " ".join(str(traced_plan(is_proven=False)).split())
    assert "left out by bounds or heuristics, 314" in found
    assert " stages found by a heuristic prices: " in found
    assert "stages proven" not in str(traced_plan(is_proven=None))


def test_a_plan_of_one_stage(golden):
    plan = named_plan()
    stage = replace(plan.stages[0], blocks=(0, 2), strategies=(("rows",),) * 2, name="the whole model")
    changes = {"num_devices": 8, "num_actors": 1, "axes": {"data": 8}, "schedule": "none", "stages": (stage,)}
    one = replace(plan, **changes, baselines=(), settings={}, mfu=None, memory_limit_bytes=None)
    golden(f"{one}\n\n{one.explain()}")


@pytest.mark.parametrize(
    "part", ["", "schedule", "stages", "mesh", "stage 1", "layer 3", "layers.*.mlp", "gpt.py:88", "block 21", "memory"]
)
def test_explanations(part, golden):
    explained = traced_plan().explain(part)
    golden(str(explained), f"explain-{part or 'all'}".replace(" ", "-").replace("*", "x").replace(":", "-"))
    assert max(map(len, explained.lines)) <= 100


class TestExplain:
    def test_what_stands_for_a_block_that_is_alike(self):
        explained = traced_plan().explain("layer 3")
        assert {one.part for one in explained.alternatives} == {"block 1", "block 4"}
        assert explained.part == "layer 3"

    def test_a_folder_before_a_line(self):
        assert "4 blocks" in str(traced_plan().explain("models/gpt.py:88"))

    def test_a_model_by_name_has_layers(self):
        mesh = PlanAlternative(
            part="mesh", chosen="data=128 x model=8", alternative="data=256 x model=4", added_s=0.1, deciding="memory"
        )
        lines = str(named_plan(alternatives=(mesh,)).explain("layer 3")).splitlines()
        assert lines[0] == "layer 3: in stage 1"
        assert lines[-1] == "  next best: data=256 x model=4, +100 ms a step (+2.1 %); memory decides"

    def test_one_that_is_faster(self):
        """The limit says why it was not taken."""
        other = PlanAlternative(part="schedule", chosen="1f1b", alternative="gpipe", added_s=-1e-3, added_bytes=90 * MB)
        text = str(traced_plan(alternatives=(other,)).explain("schedule"))
        assert "gpipe would be 1.00 ms faster, but does not fit: +90.0 MB a device" in text
        text = str(traced_plan(alternatives=(replace(other, added_bytes=-MB),)).explain("schedule"))
        assert "gpipe would be 1.00 ms faster, though it was estimated slower: -1.00 MB a device" in text

    def test_one_that_does_not_run(self):
        other = PlanAlternative(part="storage", chosen="zero 1", alternative="zero 3", added_s=float("inf"))
        assert "zero 3, which does not run" in str(traced_plan(alternatives=(other,)).explain("storage"))

    @pytest.mark.parametrize(
        ("part", "near"),
        [
            ("shedule", "'schedule'"),
            ("layer 44", "'layer 0' or 'layer 3'"),
            ("stage 2", "'stage 1' or 'stage 0'"),
            ("layers.*.mpl", "'params.layers.*.mlp'"),
            ("gpt.py:89", "'gpt.py:88'"),
            ("stage x", "'stage"),
            ("block 99999999999999999999", "'block"),
        ],
    )
    def test_an_unknown_part(self, part, near):
        with pytest.raises(PlanError) as caught:
            traced_plan().explain(part)
        message = str(caught.value)
        assert message.startswith(f"the plan has no part '{part}'. Ask for '")
        assert all(name in message for name in near.split(" or "))

    def test_a_part_that_is_no_text(self):
        with pytest.raises(PlanError, match=r"part should be a text, such as 'schedule' or 'layer 3', found 3\."):
            traced_plan().explain(3)


def changed_plan():
    plan = traced_plan()
    names = tuple(("rows", "rows") if names[1] == "columns" else names for names in plan.stages[0].strategies)
    stages = (replace(plan.stages[0], strategies=names), plan.stages[1])
    memory = replace(plan.memory, activation_bytes=40_000_000)
    return replace(
        plan, num_microbatches=16, microbatch_size=2, stages=stages, time_s=0.0712, schedule="gpipe", memory=memory
    )


class TestDiff:
    def test_text(self, golden):
        golden(str(jq.diff(traced_plan(), changed_plan(), names=("a.json", "b.json"))), "diff")

    def test_of_two_models(self, golden):
        text = str(jq.diff(traced_plan(), named_plan()))
        golden(text, "diff-of-two-models")
        assert max(map(len, text.splitlines())) <= 100

    def test_data(self):
        found = jq.diff(traced_plan(), changed_plan())
        assert [one.part for one in found.differences] == ["pipeline", "microbatches", "blocks 1, 4, 6, 9"]
        assert found.times_s["step"] == (0.0612, 0.0712)
        assert found.memory_bytes["activations"] == (80_000_000, 40_000_000)
        content = json.loads(json.dumps(found.as_json(), allow_nan=False))
        assert content["differences"][1] == {"part": "microbatches", "first": "8 of 4 rows", "second": "16 of 2 rows"}
        assert not found.is_same

    def test_other_stages_of_the_same_blocks(self):
        plan = traced_plan()
        first, second = plan.stages
        moved = (
            replace(first, blocks=(0, 6), strategies=first.strategies[:6], lines=(), parameters=()),
            replace(
                second, blocks=(6, 22), strategies=(*first.strategies[6:], *second.strategies), lines=(), parameters=()
            ),
        )
        (found,) = jq.diff(plan, replace(plan, stages=moved)).differences
        assert (found.part, found.first, found.second) == ("stages end at", "11", "6")

    def test_a_plan_and_itself(self):
        found = jq.diff(traced_plan(), traced_plan())
        assert found.is_same
        assert str(found).startswith("the two plans run the step in the same way\n")

    def test_what_is_no_plan(self):
        with pytest.raises(PlanError, match=r"diff takes two plans, such as `jq\.load_plan` returns, but one is 'a"):
            jq.diff(traced_plan(), "a.json")
