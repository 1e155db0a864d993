"""Plans as JSON: they come back as they were, and what is no plan is refused."""

import functools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxquard.cluster import Axis
from jaxquard.errors import GemmError
from jaxquard.gemm.algorithms.registry import ALGORITHMS
from jaxquard.gemm.autotune.autotune import autotune
from jaxquard.gemm.autotune.models import gpt3, transformer_block
from jaxquard.gemm.layers.plan_file import load_plan, parse_plan, plan_text, save_plan
from jaxquard.gemm.problem import GemmPlan, LayerPlan, Stationary
from tests.gemm.tune_by_paper import simulation_of_a_tpu, tune_by_paper
from tests.mutate_json import HOSTILE_TEXTS, mutations, result_or_one_line

_FOLDER = Path(__file__).parent / "plans"
_PLANS = st.builds(
    GemmPlan,
    algorithm=st.sampled_from(list(ALGORITHMS)),
    mesh_shape=st.tuples(st.integers(1, 99), st.integers(1, 99)),
    layers=st.lists(
        st.builds(
            LayerPlan, name=st.text(), stationary=st.sampled_from(Stationary), is_transposed=st.booleans(),
            slices=st.tuples(*[st.integers(1, 99)] * 3), block=st.integers(1, 99), split_for_overlap=st.booleans(),
            rings=st.tuples(*[st.sampled_from([None, *Axis])] * 3), bidirectional=st.booleans(),
            num_packets=st.tuples(*[st.integers(1, 99)] * 3), algorithm=st.sampled_from([None, *ALGORITHMS]),
        )
    ).map(tuple),
)  # fmt: skip


@given(plan=_PLANS)
def test_plans_come_back(plan):
    assert parse_plan(plan_text(plan)) == plan


TUNED = transformer_block(4096, num_rows=16384)


@pytest.mark.parametrize("name", ["v2_meshslice", "v2_wang", "v2_summa"])
def test_plans_of_version_2_come_back(name):
    """Files that `save_plan` wrote when two keys had other names: the same plan is found today."""
    plan = load_plan(_FOLDER / f"{name}.json")
    assert plan == tune_by_paper(TUNED, simulation_of_a_tpu(), 16, name.removeprefix("v2_")).plan
    assert "in_parts" not in plan_text(plan)
    assert parse_plan(plan_text(plan)) == plan


def test_plans_of_version_1_come_back():
    """They said nothing of rings and packets, nor of split products: the defaults are what `matmul` did."""
    plan = load_plan(_FOLDER / "v1_meshslice.json")
    assert (plan.algorithm, plan.mesh_shape) == ("meshslice", (4, 4))
    assert [layer.slices for layer in plan.layers] == [(2, 2, 2), (2, 1, 2), (2, 4, 4), (4, 2, 4)]
    for layer in plan.layers:
        assert layer == LayerPlan(name=layer.name, stationary=layer.stationary, slices=layer.slices)


def test_plans_of_version_3_come_back():
    layers = (
        LayerPlan(
            name="up",
            stationary=Stationary.Y,
            slices=(2, 1, 2),
            rings=(Axis.ROWS, None, Axis.COLUMNS),
            bidirectional=True,
        ),
        LayerPlan(name="down", stationary=Stationary.X, is_transposed=True),
    )
    assert load_plan(_FOLDER / "v3_wang.json") == GemmPlan(algorithm="wang", mesh_shape=(4, 2), layers=layers)


@functools.cache
def tuned_gpt3():
    return autotune(gpt3())


@functools.cache
def split_plan_text():
    """The text of a plan that splits products."""
    return plan_text(tune_by_paper(gpt3(), simulation_of_a_tpu()).plan)


def test_plans_as_files(tmp_path):
    plan = tuned_gpt3().plan
    save_plan(plan, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{", "", "the plan text is not JSON"),
        ('"jaxquard.gemm_plan"', '"other"', "expected the schema 'jaxquard.gemm_plan'"),
        ('"version": 4', '"version": 5', r"has version 5 of the schema, this jaxquard reads 1, 2, 3, 4\. Tune again"),
        ('"version": 4', '"version": true', "has version True of the schema"),
        (
            '"split_for_overlap": true',
            '"split_for_overlap": 1',
            r"layers\[0\].split_for_overlap should be true or false",
        ),
        ("null", '"diagonal"', r"plan.layers\[0\].rings\[0\] should be one of rows, columns, found 'diagonal'"),
        ('"bidirectional": false,', "", r"plan.layers\[0\] lacks the key bidirectional; .*\. Save the plan again"),
        ('"meshslice"', '"wong"', "has the algorithm 'wong'; the algorithms are meshslice, "),
        ('"stationary": "y"', '"stationary": "z"', r"plan.layers\[0\].stationary should be one of y, x, w, found 'z'"),
        (
            '"is_transposed": false',
            '"is_transposed": 0',
            r"plan.layers\[0\].is_transposed should be true or false, found 0",
        ),
        ('"block": 8', '"block": 0', r"plan.layers\[0\].block should be above 0, found 0"),
        ('"name": "qkv",', "", r"plan.layers\[0\] lacks the key name; .*\. Save the plan again"),
    ],
)
def test_plan_errors(old, new, message):
    text = split_plan_text()
    assert old in text
    with pytest.raises(GemmError, match=message):
        parse_plan(text.replace(old, new, 1))


def test_plan_files_that_are_none(tmp_path):
    def refuse(path, message):
        with pytest.raises(GemmError, match=message):
            load_plan(path)

    refuse(tmp_path / "no.json", r"cannot read a plan from .*no\.json \(No such file or directory\)\. Give a file that")
    refuse(tmp_path, r"cannot read a plan from .* \(Is a directory\)")
    for name, content, message in (
        ("binary.json", b"\xff\xfe", r"cannot read a plan from .*binary\.json \(it is no text\)"),
        ("empty.json", b"", r"empty\.json is not JSON: "),
        ("list.json", b"[1]", r"list\.json is no GeMM plan: expected the schema 'jaxquard.gemm_plan'"),
    ):
        (tmp_path / name).write_bytes(content)
        refuse(tmp_path / name, message)
    with pytest.raises(GemmError, match=r"the plan text: plan.layers should be a list, found 5\. Save the plan again"):
        parse_plan(json.dumps(json.loads(plan_text(tuned_gpt3().plan)) | {"layers": 5}))
    with pytest.raises(GemmError, match=r"cannot write the plan to .*no/plan\.json \(No such file or directory\)"):
        save_plan(tuned_gpt3().plan, tmp_path / "no" / "plan.json")
    for path in (None, 3, b"plan.json"):
        refuse(path, "path must be that of a plan's file, but is ")
    with pytest.raises(GemmError, match="path must be that of a plan's file, but is None"):
        save_plan(tuned_gpt3().plan, None)
    with pytest.raises(GemmError, match=r"plan must be a GemmPlan, such as the `plan` of what `autotune` returns"):
        save_plan(tuned_gpt3(), tmp_path / "plan.json")


_REAL = json.loads((_FOLDER / "v3_wang.json").read_text())


@given(content=mutations(_REAL))
def test_a_plan_that_a_stranger_changed(content):
    """It is a plan, or it is refused in one line."""
    plan = result_or_one_line(lambda: parse_plan(json.dumps(content)), GemmError)
    assert plan is None or isinstance(plan, GemmPlan)


@pytest.mark.parametrize("text", HOSTILE_TEXTS, ids=range(len(HOSTILE_TEXTS)))
def test_texts_that_are_no_plan(text):
    with pytest.raises(GemmError) as caught:
        parse_plan(text)
    assert "\n" not in str(caught.value)
