"""The corpus of plans: its problems, its record, and how new plans are judged."""

import contextlib
import json
import math
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.corpus.plan_problems import plan_problem
from benchmarks.corpus.problems import CORPUS, NAMED, SMALL, TRACED, find_problem
from benchmarks.corpus.verdict import Verdict, compare, summarise
from benchmarks.plan_corpus import (
    RESULTS,
    ask,
    has_frozen,
    judge,
    main,
    print_verdicts,
    read_record,
    record,
    unpack_frozen,
)

SMALL_NAMES = [problem.name for problem in SMALL]
needs_frozen = pytest.mark.skipif(not has_frozen(), reason="a shallow clone does not have the frozen commit")


def test_the_corpus_has_the_problems_that_were_asked_for():
    assert set(Counter(one.model for one in NAMED).values()) == {5}
    assert set(Counter(one.model for one in TRACED).values()) == {2}
    assert len({one.model for one in NAMED}) == len({one.model for one in TRACED}) == 12
    assert {one.cluster for one in TRACED} == {"cpu-8", "h100-8", "h100-8x4", "v5e-4x4"}
    assert all(find_problem(one.name) is one for one in (*CORPUS, *SMALL))


def test_the_record_has_a_plan_of_every_problem():
    found = read_record(RESULTS)["problems"]
    assert [one["name"] for one in found] == [one.name for one in CORPUS]
    assert [one["name"] for one in found if "words" not in one] == ["llama3:70b on h100-8"]
    assert all(one["peak_bytes"] <= one["limit_bytes"] for one in found if "words" in one)
    assert RESULTS.stat().st_size < 300_000


@pytest.fixture(scope="module")
def answers() -> dict[str, dict[str, Any]]:
    """The small problems, planned in this process."""
    return {name: plan_problem(name) for name in SMALL_NAMES}


def test_a_search_is_on_the_clock(answers):
    for found in answers.values():
        assert 0 < found["time_s"] < 1
        assert 0 < found["peak_bytes"] < found["limit_bytes"]
        assert found["search_s"] > 0


def test_a_model_that_does_not_fit_is_an_answer():
    found = plan_problem("llama3:70b on h100-8")
    assert found["refusal"].startswith("no strategy fits 75.2 GB a chip of h100-8.")
    assert "words" not in found


def test_plans_that_are_recorded_and_found_again_are_as_fast(answers, tmp_path, capsys):
    file = tmp_path / "plans.json"
    record(SMALL_NAMES, file, plan=answers.__getitem__)
    kept = read_record(file)["problems"]
    assert {one["name"]: one for one in kept} == answers
    asked = []

    def price_plans(plans):
        asked.extend(plans)
        return [answers[one["name"]] for one in plans]

    verdicts = judge(kept, plan=answers.__getitem__, price_plans=price_plans)
    assert [(one.name, one.ratio, one.faults) for one in verdicts] == [(name, 1.0, ()) for name in SMALL_NAMES]
    assert asked == [{"name": name, "words": answers[name]["words"]} for name in SMALL_NAMES]
    assert print_verdicts(verdicts)
    assert "mean of 2 ratios: 1.0000, at most 1.01: met" in capsys.readouterr().out


def test_a_record_of_other_code_is_not_mixed_with_new_plans(answers, tmp_path):
    file = tmp_path / "plans.json"
    record(SMALL_NAMES, file, plan=answers.__getitem__)
    file.write_text(file.read_text().replace('"commit": "', '"commit": "other '))
    with pytest.raises(SystemExit, match=r"is of other code or of another machine\. Record all problems"):
        record(SMALL_NAMES[:1], file, plan=answers.__getitem__)
    record(SMALL_NAMES, file, plan=answers.__getitem__)


def test_what_a_record_has_is_not_planned_again(answers, tmp_path):
    file, planned = tmp_path / "plans.json", []

    def plan(name):
        planned.append(name)
        return answers[name]

    record(SMALL_NAMES[:1], file, plan=plan)
    record(SMALL_NAMES, file, plan=plan, only_missing=True)
    assert planned == SMALL_NAMES


def recorded(*names: str) -> list[dict[str, Any]]:
    found = {one["name"]: one for one in read_record(RESULTS)["problems"]}
    return [found[name] for name in names]


@needs_frozen
def test_the_frozen_code_has_the_recorded_prices():
    kept = recorded("llama3:8b on h100-8x2", "scanned gpt on cpu-8")
    prices = ask("benchmarks.corpus.price_frozen", unpack_frozen(), kept)
    for found, price in zip(kept, prices, strict=True):
        assert price["time_s"] == pytest.approx(found["time_s"])
        assert price["peak_bytes"] == pytest.approx(found["peak_bytes"])
        assert price["limit_bytes"] == pytest.approx(found["limit_bytes"])


@needs_frozen
@pytest.mark.slow
def test_a_whole_run(tmp_path, capsys):
    main(["check", "--only", "llama3:8b on *"])
    assert "with faults: none" in capsys.readouterr().out
    content = read_record(RESULTS)
    for one in content["problems"]:
        one["search_cpu_s"] = 0.0
    (tmp_path / "plans.json").write_text(json.dumps(content))
    with pytest.raises(SystemExit) as stopped:  # All is well but for the time of the searches.
        main(["judge", "--only", "llama3:8b on h100-8x2", "--file", str(tmp_path / "plans.json")])
    assert stopped.value.code == 1
    out = capsys.readouterr().out
    assert "with faults: none" in out
    assert "before 0.0 s: MISSED" in out
    with contextlib.suppress(SystemExit):  # Either search may be the faster one.
        main(["judge", "--only", "llama3:8b on h100-8x2", "--file", str(tmp_path / "plans.json"), "--time-frozen"])
    assert "before 0.0 s" not in capsys.readouterr().out


@needs_frozen
@pytest.mark.slow
def test_a_plan_of_other_blocks_has_no_price(answers):
    (name,) = [problem.name for problem in SMALL if problem in SMALL[1:]]
    words = answers[name]["words"]
    renamed = {**words, "parameters": ["params.other", *words["parameters"][1:]]}
    misplaced = {**words, "actors": 4}
    wrong = [{"name": name, "words": renamed}, {"name": name, "words": misplaced}]
    found = ask("benchmarks.corpus.price_frozen", unpack_frozen(), wrong)
    assert "the first that differ have the parameters 'params.layers.0.up' and 'params.other'" in found[0]["failure"]
    assert "the plan is for 4 chips" in found[1]["failure"]


def test_an_unknown_problem_is_answered_with_the_list():
    with pytest.raises(SystemExit, match=r"no problem is called 'gtp\*'. There are: bert:base on h100-2, residual"):
        main(["judge", "--only", "gtp*"], problems=SMALL)


def answer(**changes: Any) -> dict[str, Any]:
    found = {"name": "a on b", "time_s": 1.0, "peak_bytes": 90, "limit_bytes": 100, "search_cpu_s": 2.0, "words": {}}
    return {**found, **changes}


@pytest.mark.parametrize(
    ("now_price", "fault"),
    [
        (answer(), None),
        (answer(time_s=0.5), None),
        (answer(time_s=1.049), None),
        (answer(time_s=1.051), "slower by more than 5%"),
        (answer(peak_bytes=101), "too large"),
        ({"failure": "KeyError: 'x'"}, "the new plan has no price: KeyError: 'x'"),
    ],
)
def test_a_plan_that_is_slower_or_too_large_is_at_fault(now_price, fault):
    found = compare(answer(), answer(), then_price=answer(), now_price=now_price)
    assert found.faults == (() if fault is None else (fault,))


def test_a_plan_that_is_not_found_any_more_is_a_fault():
    refusal = {"name": "a on b", "refusal": "nothing fits", "search_cpu_s": 1.0}
    assert compare(answer(), refusal, then_price=answer(), now_price=None).faults == ("no plan: nothing fits",)
    assert compare(refusal, refusal, then_price=None, now_price=None).faults == ()
    found = compare(refusal, answer(), then_price=None, now_price=answer())
    assert (found.ratio, found.faults) == (None, ())


def test_a_record_that_the_frozen_code_does_not_give_again_is_a_fault():
    found = compare(answer(), None, then_price=answer(time_s=1.001), now_price=None)
    assert found.faults == ("the recorded time_s is 1, the frozen code says 1.001",)
    found = compare(answer(), None, then_price={"failure": "none"}, now_price=None)
    assert found.faults == ("the recorded plan has no price: none",)


def test_the_search_of_the_largest_problem_has_a_limit_of_its_own():
    largest = answer(name="llama3:405b on h100-8x2048")
    for spent_s, faults in ((4.9, ()), (5.1, ("its search took 5.1 s, wanted 5",))):
        now = {**largest, "search_cpu_s": spent_s}
        assert compare(largest, now, then_price=largest, now_price=largest).faults == faults


def verdict(name: str, ratio: float, **changes: Any) -> Verdict:
    found = Verdict(
        name=name,
        then_s=1.0,
        now_s=ratio,
        peak_bytes=1.0,
        limit_bytes=2.0,
        search_then_s=2.0,
        search_now_s=1.5,
    )
    return replace(found, **changes)


def test_the_mean_leaves_out_the_simpler_plan_of_a_tie():
    lines, is_met = summarise([verdict("a", 1.0), verdict("b", 1.01), verdict("c", 1.04, is_simpler_of_tie=True)])
    assert is_met
    assert lines == [
        "mean of 2 ratios: 1.0050, at most 1.01: met",
        "worst: 1.0400 (c), at most 1.05: met",
        "all searches: 4.5 s, before 6.0 s: met",
        "simpler of a tie, not in the mean: c",
        "with faults: none",
    ]


@pytest.mark.parametrize(
    ("verdicts", "line"),
    [
        ([verdict("a", 1.0), verdict("b", 1.03)], "mean of 2 ratios: 1.0150, at most 1.01: MISSED"),
        ([verdict("a", 1.0, search_now_s=2.5)], "all searches: 2.5 s, before 2.0 s: MISSED"),
        ([verdict("a", 1.0, faults=("too large",))], "with faults: a"),
    ],
)
def test_a_limit_that_is_missed_is_said(verdicts, line):
    lines, is_met = summarise(verdicts)
    assert not is_met
    assert line in lines


def test_a_row_has_what_is_known():
    assert verdict("a", 1.0).cells == ("a", "1", "1", "1.0000", "0.75", "0.500", "", "")
    unknown = dict.fromkeys(("then_s", "now_s", "peak_bytes", "limit_bytes", "search_now_s"))
    assert verdict("a", math.nan, **unknown, faults=("x", "y")).cells == ("a", *["-"] * 5, "", "x; y")
