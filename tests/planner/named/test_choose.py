"""Of plans that tie the simplest is taken, uneven stages are planned, and what nobody has seen is said."""

from dataclasses import replace

import pytest

from jaxquard.cluster import load_cluster
from jaxquard.planner.named.choose import TIE, choose_simplest
from jaxquard.planner.named.model_step import ModelStep
from jaxquard.planner.named.plan_named import plan_named
from jaxquard.planner.named.play_strategy import play_strategy
from jaxquard.planner.named.search import PricedStrategy
from jaxquard.pricing import Parallelism, Transformer, find_system, split_layers

GPT = Transformer(num_layers=16, hidden=4096, num_heads=32, vocab=51200, seq=2048)
STEP = ModelStep(
    transformer=GPT, cluster=load_cluster("h100-8x4"), system=find_system("JaxPP"), global_batch=64, limit_bytes=75e9
)
BASE = Parallelism(data=32, global_batch=64, schedule="none", zero=3)


def played(par, time_s):
    found = play_strategy(STEP, PricedStrategy(parallelism=par, price=STEP.price(par)))
    return replace(found, time_s=time_s)


def test_the_simplest_of_a_tie():
    tensor = replace(BASE, tensor=2, sequence=True, data=16)
    fast, simple = played(tensor, 1.0), played(BASE, 1.0 + 0.9 * TIE)
    best, notes = choose_simplest(STEP, [fast, simple])
    assert best is simple
    assert notes == (
        "the simplest of 2 plans within 2.0 %, which is less than prices err: tensor 2, data 16, sequence parallel is "
        "1.8 % faster",
    )


def test_beyond_a_tie_the_fastest():
    fast = played(replace(BASE, tensor=2, sequence=True, data=16), 1.0)
    best, notes = choose_simplest(STEP, [fast, played(BASE, 1.0 + 1.1 * TIE)])
    assert best is fast
    assert notes == ()


def test_groups_across_hosts_are_not_simple():
    wide, narrow = replace(BASE, tensor=16, sequence=True, data=2), replace(BASE, tensor=8, sequence=True, data=4)
    assert choose_simplest(STEP, [played(wide, 1.0), played(narrow, 1.01)])[0].parallelism == narrow


@pytest.mark.parametrize(("num_layers", "num_stages"), [(61, 2), (61, 16), (126, 16), (96, 8), (7, 4), (61, 61)])
def test_uneven_stages_have_all_layers(num_layers, num_stages):
    counts = split_layers(num_layers, num_stages)
    assert sum(counts) == num_layers
    assert len(counts) == num_stages
    assert all(count.is_integer() and count >= 1 for count in counts)
    assert len(set(counts[1:-1])) <= 1
    assert counts[-1] <= counts[0] <= max(counts)


def test_61_layers_make_a_pipeline():
    plan = plan_named("deepseek:v3", "h100-8x32", global_batch=1024, fix={"actors": 16, "tensor": 1}, progress=False)
    assert plan.stage_stops[0] < 4
    assert plan.stage_stops[-1] == 61
    assert plan.num_stages == len(plan.stages) == 16


def test_what_nobody_has_seen_is_said():
    plan = plan_named("llama2:70b", "v5p-4x4x4", global_batch=256, progress=False)
    assert any(note.startswith("an MFU of ") and "(71.3 % in bf16)" in note for note in plan.notes)
    assert any("a fitted share; with all of them it takes" in note for note in plan.notes)
    usual = plan_named("llama3:8b", "h100-8", global_batch=64, fix={"recompute": "full"}, progress=False)
    assert not any("MFU" in note for note in usual.notes)
