"""Plan files that a stranger changed: each is a plan, or is refused in one line."""

import json
from pathlib import Path

import pytest
from hypothesis import given

from jaxquard.errors import ShardingError
from jaxquard.intraop.plan.plan_record import PlanRecord, read_plan
from tests.mutate_json import HOSTILE_TEXTS, mutations, result_or_one_line

(SAVED,) = (Path(__file__).parent / "saved").glob("plan_*.json")
REAL = json.loads(SAVED.read_text())


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("plans") / "plan.json"


@given(content=mutations(REAL))
def test_a_plan_with_changes(path, content):
    path.write_text(json.dumps(content))
    plan = result_or_one_line(lambda: read_plan(path), ShardingError)
    assert plan is None or isinstance(plan, PlanRecord)


@pytest.mark.parametrize("text", HOSTILE_TEXTS, ids=range(len(HOSTILE_TEXTS)))
def test_texts_that_are_no_plan(path, text):
    path.write_text(text, errors="surrogatepass")
    with pytest.raises(ShardingError) as caught:
        read_plan(path)
    assert "\n" not in str(caught.value)
