"""Plans are saved and loaded; a file that is no plan, or contradicts itself, is refused in one line."""

import json
import os
import threading
from dataclasses import replace

import pytest
from hypothesis import given

import jaxquard as jq
from jaxquard.errors import PlanError
from jaxquard.planner.record.plan import load_plan
from jaxquard.planner.record.plan_data import MemoryTerms
from jaxquard.planner.record.plan_file import parse_plan_json, plan_as_json
from tests.mutate_json import HOSTILE_TEXTS, mutations, result_or_one_line
from tests.planner.record.sample_plans import named_plan, traced_plan

PLANS = {"traced": traced_plan, "named": named_plan}
REAL = json.loads(json.dumps(plan_as_json(traced_plan())))


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_that_is_read_again_is_the_same(name, tmp_path):
    plan = PLANS[name]()
    plan.save(tmp_path / "plan.json")
    loaded = jq.load_plan(tmp_path / "plan.json")
    assert loaded == plan
    assert type(loaded) is jq.Plan
    assert str(loaded) == str(plan)
    assert os.listdir(tmp_path) == ["plan.json"]


def test_files_without_a_proof_load():
    """Those of before do not say how their stages were found."""
    content = {name: value for name, value in REAL.items() if name != "is_proven"}
    assert parse_plan_json(content, source="plan.json").is_proven is None


def test_it_is_plain_json_with_a_schema(tmp_path):
    traced_plan().save(str(tmp_path / "plan.json"))
    content = json.loads((tmp_path / "plan.json").read_text(), parse_constant=pytest.fail)
    assert (content["kind"], content["schema"]) == ("jaxquard plan", 1)
    assert content["baselines"][3]["time_s"] is None


class TestWrite:
    def test_the_old_file_stays_until_the_new_one_is_whole(self, tmp_path):
        path = tmp_path / "plan.json"
        traced_plan().save(path)
        seen, is_over = [], threading.Event()

        def read():
            while not is_over.is_set():
                seen.append(load_plan(path).num_microbatches)

        reader = threading.Thread(target=read)
        reader.start()
        for _ in range(20):
            traced_plan(num_microbatches=16, microbatch_size=2).save(path)
            traced_plan().save(path)
        is_over.set()
        reader.join()
        assert set(seen) <= {8, 16}

    def test_a_link_stays_a_link(self, tmp_path):
        traced_plan().save(tmp_path / "real.json")
        (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
        named_plan().save(tmp_path / "link.json")
        assert (tmp_path / "link.json").is_symlink()
        assert load_plan(tmp_path / "real.json").model == "llama3:405b"

    def test_a_pipe_is_written_to(self, tmp_path):
        os.mkfifo(tmp_path / "pipe")
        read = []
        reader = threading.Thread(target=lambda: read.append(load_plan(tmp_path / "pipe")))
        reader.start()
        traced_plan().save(tmp_path / "pipe")
        reader.join()
        assert read == [traced_plan()]

    def test_a_file_that_cannot_be_written(self, tmp_path):
        with pytest.raises(PlanError, match=r"cannot write the plan to .*no/plan\.json \(No such file or directory\)"):
            traced_plan().save(tmp_path / "no" / "plan.json")
        with pytest.raises(PlanError, match=r"cannot write the plan to .* \(Is a directory\)\. Give a file"):
            traced_plan().save(tmp_path)
        with pytest.raises(PlanError, match=r"path must be that of a plan's file, but is 3\."):
            traced_plan().save(3)

    def test_a_plan_that_contradicts_itself_is_not_written(self, tmp_path):
        with pytest.raises(
            PlanError, match=r"contradicts itself and is not written to .*global_batch should be 8 micro"
        ):
            traced_plan(global_batch=33).save(tmp_path / "plan.json")
        assert not os.listdir(tmp_path)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("plans") / "plan.json"


def refused(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(PlanError) as caught:
        load_plan(path)
    assert "\n" not in str(caught.value)
    return str(caught.value).replace(str(path), "FILE")


class TestFilesThatAreNoPlans:
    def test_one_that_is_not_there(self, tmp_path):
        with pytest.raises(PlanError, match=r"no\.json cannot be read as a plan: No such file or directory\. Give a"):
            load_plan(tmp_path / "no.json")
        with pytest.raises(PlanError, match=r"cannot be read as a plan: Is a directory"):
            load_plan(tmp_path)
        with pytest.raises(PlanError, match=r"path must be that of a plan's file, but is None\."):
            load_plan(None)

    def test_another_kind(self, path):
        assert refused(path, []).startswith("FILE is no plan: it has a list, and a plan is a table.")
        assert "its kind is 'jaxquard checkpoint', and that of a plan is" in refused(
            path, {"kind": "jaxquard checkpoint"}
        )

    @pytest.mark.parametrize("schema", [2, 0, None, "1", True])
    def test_another_schema(self, path, schema):
        assert refused(path, {**REAL, "schema": schema}) == (
            f"FILE has schema {schema!r} of a plan, and this jaxquard reads 1. Plan again."
        )

    def test_one_that_is_too_large(self, path, monkeypatch):
        monkeypatch.setattr("jaxquard.planner.record.plan_file._MOST_BYTES", 2**20)
        path.write_bytes(b" " * (2**20 + 1))
        with pytest.raises(PlanError, match=r"cannot be read as a plan: it has more than 1 MiB\."):
            load_plan(path)

    def test_an_escape_for_the_terminal(self, path):
        changed = {**REAL, "notes": ["\x1b[2Jgone"]}
        assert refused(path, changed) == (
            "FILE is no whole plan: plan.notes[0] has the character U+001B, which no text of a plan has. Plan again."
        )
        assert "a key of plan.settings has the character U+009B" in refused(path, {**REAL, "settings": {"\x9b": "x"}})


STAGES = traced_plan().stages
CONTRADICTIONS = {
    "plan.num_devices should be 2 actors x 4 devices (data=2 x model=2), found 16": {"num_devices": 16},
    "plan.axes should have an axis": {"axes": {}},
    "plan.global_batch should be 8 microbatches x 4 rows, found 31": {"global_batch": 31},
    "plan.stages should have a stage": {"stages": ()},
    "plan.stages[1].blocks should begin at 11 and have a block, found [12, 22]": {
        "stages": (STAGES[0], replace(STAGES[1], blocks=(12, 22)))
    },
    "plan.stages[1].blocks should begin at 11 and have a block, found [11, 11]": {
        "stages": (STAGES[0], replace(STAGES[1], blocks=(11, 11)))
    },
    "plan.stages[0].strategies should have an entry for each of 11 blocks, not 10": {
        "stages": (replace(STAGES[0], strategies=STAGES[0].strategies[1:]), STAGES[1])
    },
    "plan.stages[1].lines should have an entry for each of 11 blocks, not 1": {
        "stages": (STAGES[0], replace(STAGES[1], lines=("a.py:1",)))
    },
    "plan.stages[1].actor should be below 2, found 2": {"stages": (STAGES[0], replace(STAGES[1], actor=2))},
    "plan.stages should give every actor a stage, found none for actor 1": {
        "stages": (STAGES[0], replace(STAGES[1], actor=0))
    },
    "plan.stages[0].actor should be 0, where 1f1b puts it, found 1": {
        "stages": (replace(STAGES[0], actor=1), replace(STAGES[1], actor=0))
    },
    "plan.stages[0].strategies should have a choice on each of 2 axes, found ('rows',)": {
        "stages": (replace(STAGES[0], strategies=(("rows",),) * 11), STAGES[1])
    },
    "plan.stages[0].strategies should have a choice on each of 2 axes, found ('rows', 'rows', 'rows')": {
        "fingerprint": None,
        "stages": (replace(STAGES[0], strategies=(("rows",) * 3,) * 11), STAGES[1]),
    },
    "plan.schedule: no schedule is called '2f2b'. Use one of: gpipe": {"schedule": "2f2b"},
    "plan.schedule should be one of gpipe, 1f1b": {"schedule": "none"},
    "plan.segments should have the 22 blocks of the stages, found 21": {"segments": (21,)},
    "plan.storage should be one of as used, zero 1, zero 2, zero 3, found 'zero 4'": {"storage": "zero 4"},
    "plan.products should be of the blocks 21, found none": {"products": {}},
    "plan.time_s should be above 0, found 0.0": {"time_s": 0.0},
    "plan.time_s should be a number, found null": {"time_s": float("inf")},
    "plan.memory.weight_bytes should be from 0 to 1,152,921,504,606,846,976, found -1": {
        "memory": MemoryTerms(weight_bytes=-1)
    },
    "plan.num_devices should be from 0 to 16,777,216, found": {"num_devices": 2**25, "axes": {"data": 2**24}},
}


@pytest.mark.parametrize("message", CONTRADICTIONS)
def test_contradictions_are_named(path, message):
    plan = traced_plan(**CONTRADICTIONS[message])
    assert refused(path, plan_as_json(plan)).startswith(f"FILE is no whole plan: {message}")


def test_a_block_with_half_a_2d_product(path):
    stage = replace(STAGES[1], strategies=(*STAGES[1].strategies[:-1], ("2d rows", "rows")))
    message = refused(path, plan_as_json(traced_plan(stages=(STAGES[0], stage))))
    assert "block 21 should have 2d rows and 2d columns on two axes, found ('2d rows', 'rows')" in message


@given(content=mutations(REAL))
def test_a_plan_with_changes(path, content):
    path.write_text(json.dumps(content))
    plan = result_or_one_line(lambda: load_plan(path), PlanError)
    if plan is not None:
        assert str(plan)
        assert str(plan.explain())
        assert str(plan.explain("stage 0"))
        assert str(jq.diff(traced_plan(), plan))


@pytest.mark.parametrize("text", HOSTILE_TEXTS, ids=range(len(HOSTILE_TEXTS)))
def test_texts_that_are_no_plan(path, text):
    path.write_text(text, errors="surrogatepass")
    with pytest.raises(PlanError) as caught:
        load_plan(path)
    assert "\n" not in str(caught.value)
