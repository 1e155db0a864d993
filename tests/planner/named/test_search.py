"""The search against prices of all strategies, and its bounds against the prices that they bound."""

import random
import time
from dataclasses import replace

import pytest

from jaxquard.cluster import load_cluster
from jaxquard.planner.named.bounds import StepBounds
from jaxquard.planner.named.choices import CHOICES, read_wishes
from jaxquard.planner.named.model_step import ModelStep
from jaxquard.planner.named.models import find_named_model
from jaxquard.planner.named.search import StrategySearch
from jaxquard.planner.named.space import list_space
from jaxquard.pricing import Transformer, find_system

SMALL = Transformer(num_layers=6, hidden=1024, num_heads=4, vocab=32000, seq=1024)
SMALL_MOE = Transformer(
    num_layers=4, hidden=1024, num_heads=4, vocab=32000, seq=512, num_experts=4, top_k=2, num_dense_layers=1
)


def model_step(transformer, cluster, *, batch, system="JaxPP", limit_bytes=None, dtype="bf16"):
    cluster = load_cluster(cluster)
    return ModelStep(
        transformer=transformer,
        cluster=cluster,
        system=find_system(system),
        global_batch=batch,
        dtype=dtype,
        limit_bytes=limit_bytes or 0.94 * cluster.memory.size_bytes,
    )


@pytest.mark.parametrize(
    ("transformer", "limit_bytes"),
    [
        pytest.param(SMALL, None, id="dense"),
        pytest.param(SMALL, 0.9e9, id="dense, little memory"),
        pytest.param(SMALL_MOE, None, id="experts", marks=pytest.mark.slow),
        pytest.param(SMALL_MOE, 0.9e9, id="experts, little memory", marks=pytest.mark.slow),
    ],
)
def test_the_search_finds_what_pricing_everything_finds(transformer, limit_bytes):
    step = model_step(transformer, "h100-2x4", batch=4, system="Megatron-LM 2022", limit_bytes=limit_bytes)
    space = list_space(step)
    prices = [step.price(strategy) for strategy in space]
    times = sorted(price.time_s for price in prices if price.peak_bytes <= step.limit_bytes)
    search = StrategySearch(step=step, space=space)
    found = search.fastest(5)
    assert len(prices) == len(space) > 500
    assert [item.price.time_s for item in found] == times[:5]
    assert search.num_priced < len(times) if limit_bytes is None else times[5:]
    # The rank of any time, and the fastest under a filter, are exact too.
    assert search.rank(times[7]) == times.index(times[7]) + 1
    without = search.fastest(1, lambda strategy: strategy.pipeline == 1)[0]
    priced = zip(space, prices, strict=True)
    expected = min(p.time_s for s, p in priced if s.pipeline == 1 and p.peak_bytes <= step.limit_bytes)
    assert without.price.time_s == expected


@pytest.mark.parametrize(
    ("name", "cluster", "batch", "system"),
    [
        ("llama3:405b", "h100-8x2048", 2048, "JaxPP"),
        pytest.param("gpt3:175b", "a100-8x140", 560, "Megatron-LM 2022", marks=pytest.mark.slow),
        ("deepseek:v3", "h100-8x64", 2048, "Megatron-Bridge"),
        pytest.param("mixtral:8x7b", "v5p-4x4x4", 64, "MaxText", marks=pytest.mark.slow),
        ("bert:large", "h100-8", 256, "NeMo"),
    ],
)
def test_no_price_is_below_its_bounds(name, cluster, batch, system):
    step = replace(
        model_step(find_named_model(name).transformer, cluster, batch=batch, system=system), limit_bytes=1e30
    )
    space, draw = list_space(step), random.Random(0)
    bounds = StepBounds(step)
    for strategies in draw.sample(space.meshes, 25):
        choices = list(bounds.choices(strategies))
        assert len(choices) == len(strategies)
        for size, time_s, *parts in draw.sample(choices, min(len(choices), 8)):
            price = step.price(strategies.strategy(*parts))
            assert price.peak_bytes >= size
            assert price.time_s >= time_s > 0


def test_strategies_are_all_different_and_use_all_chips():
    step = model_step(SMALL_MOE, "h100-2x4", batch=4)
    strategies = list(list_space(step))
    assert len(set(strategies)) == len(strategies)
    assert {strategy.num_devices for strategy in strategies} == {8}
    assert {strategy.num_microbatches * strategy.microbatch * strategy.data for strategy in strategies} == {4}


def test_the_space_has_every_kind_of_parallelism():
    step = model_step(SMALL_MOE, "h100-2x4", batch=4)
    strategies = list(list_space(step))
    seen = {word: {str(read(item)) for item in strategies} for word, read in CHOICES.items()}
    assert seen["schedule"] == {"none", "1f1b", "zero-bubble-h1", "interleaved"}
    assert seen["storage"] == {"as used", "zero 1", "zero 2", "zero 3"}
    assert seen["tensor"] == {"1", "2", "4"}
    assert seen["context"] == {"1", "2"}
    assert seen["expert"] == {"1", "2", "4"}
    assert seen["recompute"] == {"none", "full"}
    assert seen["sequence"] == {"True", "False"}


def test_wishes_bring_back_what_is_left_out():
    step = model_step(SMALL, "h100-2x4", batch=8)
    free = list_space(step)
    assert any(text.startswith("gpipe") for text in free.left_out)
    wished = list_space(step, read_wishes({"schedule": "gpipe", "recompute": "selective", "storage": "zero 3"}, None))
    assert len(wished)
    assert {(item.schedule, item.recompute, item.zero) for item in wished} == {("gpipe", "selective", 3)}
    assert wished.left_out == free.left_out[3:]


def test_stages_without_whole_layers_are_said_to_be_left_out():
    """5 layers on 4 stages would be 2 on each, and half a layer on both ends."""
    texts = list_space(model_step(replace(SMALL, num_layers=5), "h100-2x4", batch=8)).left_out
    assert any(text.startswith("4 stages, and others that do not split 5 layers into whole ones") for text in texts)
    assert not any("whole ones" in text for text in list_space(model_step(SMALL, "h100-2", batch=8)).left_out)


@pytest.mark.parametrize(
    ("fix", "forbid"),
    [
        (fix, forbid)
        for fix in (
            *({}, {"tensor": 2, "stages": [2, 4]}),
            *({"mesh": {"data": 4, "tensor": 2}}, {"microbatches": "2", "zero": 1}),
        )
        for forbid in ({}, {"recompute": "full", "sequence": False})
    ],
)
def test_wishes_leave_what_they_allow(fix, forbid):
    step = model_step(SMALL, "h100-2x4", batch=8)
    wishes = read_wishes(fix, forbid)
    space = list_space(step, wishes)
    expected = [item for item in list_space(step) if all(wish.allows(item) for wish in wishes)]
    assert set(space) == set(expected)
    assert expected


def test_a_search_ends_when_its_time_is_over():
    step = model_step(SMALL, "h100-2x4", batch=8)
    search = StrategySearch(step=step, space=list_space(step), deadline_s=time.monotonic() - 1)
    assert search.fastest() == ()
    assert search.has_ended_early


def test_progress_is_reported():
    calls = []
    step = model_step(SMALL, "h100-2x4", batch=8)
    search = StrategySearch(step=step, space=list_space(step), on_progress=lambda *call: calls.append(call))
    search.rank(1e9)
    assert calls[0] == (500, search.num_fitting, "strategies priced")
    assert search.num_priced == search.num_fitting
