"""Plans as JSON: they come back as they were, and what is no plan is refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxquard.cluster import Axis
from jaxquard.errors import GemmError
from jaxquard.gemm.autotune.autotune import autotune
from jaxquard.gemm.autotune.models import gpt3
from jaxquard.gemm.cost.algorithms import ALGORITHMS
from jaxquard.gemm.layers.plan_file import load_plan, parse_plan, plan_text, save_plan
from jaxquard.gemm.problem import GemmPlan, LayerPlan, Stationary

_PLANS = st.builds(
    GemmPlan,
    algorithm=st.sampled_from(ALGORITHMS),
    mesh_shape=st.tuples(st.integers(1, 99), st.integers(1, 99)),
    layers=st.lists(
        st.builds(
            LayerPlan, name=st.text(), stationary=st.sampled_from(Stationary), is_transposed=st.booleans(),
            slices=st.tuples(*[st.integers(1, 99)] * 3), block=st.integers(1, 99), in_parts=st.booleans(),
            rings=st.tuples(*[st.sampled_from([None, *Axis])] * 3), both_ways=st.booleans(),
            num_packets=st.tuples(*[st.integers(1, 99)] * 3),
        )
    ).map(tuple),
)  # fmt: skip


@given(plan=_PLANS)
def test_plans_come_back(plan):
    assert parse_plan(plan_text(plan)) == plan


def test_plans_of_version_1_come_back():
    """They said nothing of rings and packets, nor of parts: they are what `matmul` does if it is not told."""
    plan = autotune(gpt3(), algorithm="collective").plan
    content = json.loads(plan_text(plan)) | {"version": 1}
    for layer in content["layers"]:
        for name in ("in_parts", "rings", "both_ways", "num_packets"):
            del layer[name]
    assert parse_plan(json.dumps(content)) == plan


def test_plans_as_files(tmp_path):
    plan = autotune(gpt3()).plan
    save_plan(plan, tmp_path / "plan.json")
    assert load_plan(tmp_path / "plan.json") == plan


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{", "", "the plan text is not JSON"),
        ('"jaxquard.gemm_plan"', '"other"', "expected the schema 'jaxquard.gemm_plan'"),
        ('"version": 2', '"version": 3', "has version 3 of the schema, this jaxquard reads 1 and 2. Tune again."),
        ('"in_parts": true', '"in_parts": 1', "layer 0: in_parts should be true or false, found 1"),
        ("null", '"diagonal"', "layer 0: rings should be 3 of rows, columns and null, found .'diagonal', None, None"),
        ('"both_ways": false,', "", "layer 0 lacks 'both_ways'. Save the plan again"),
        ('"meshslice"', '"wong"', "has the algorithm 'wong'; the algorithms are meshslice, "),
        ('"stationary": "y"', '"stationary": "z"', "layer 0: stationary should be one of y, x, w, found 'z'"),
        ('"is_transposed": false', '"is_transposed": 0', "layer 0: is_transposed should be true or false, found 0"),
        ('"block": 8', '"block": 0', "layer 0: block should be 1 whole numbers above 0"),
        ('"name": "qkv",', "", "layer 0 lacks 'name'. Save the plan again"),
    ],
)
def test_plan_errors(old, new, message):
    text = plan_text(autotune(gpt3()).plan)
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
    with pytest.raises(GemmError, match="layers should be a list, found 5"):
        parse_plan(json.dumps(json.loads(plan_text(autotune(gpt3()).plan)) | {"layers": 5}))
    with pytest.raises(GemmError, match=r"cannot write the plan to .*no/plan\.json \(No such file or directory\)"):
        save_plan(autotune(gpt3()).plan, tmp_path / "no" / "plan.json")
    for path in (None, 3, b"plan.json"):
        refuse(path, "path must be that of a plan's file, but is ")
    with pytest.raises(GemmError, match="path must be that of a plan's file, but is None"):
        save_plan(autotune(gpt3()).plan, None)
    with pytest.raises(GemmError, match=r"plan must be a GemmPlan, such as the `plan` of what `autotune` returns"):
        save_plan(autotune(gpt3()), tmp_path / "plan.json")
