"""Published configurations: which models have some, and that they run on the clusters that they are from."""

import pytest

from jaxquard.planner.named.baselines.published import published_strategies
from jaxquard.planner.named.models import find_named_model, named_models
from tests.planner.named.test_search import model_step

MEGATRON = {"Megatron-LM", "NeMo", "Megatron-Bridge", "JaxPP"}
BIG = ("gpt3:175b", "llama2:70b", "llama3:8b", "llama3:70b", "llama3:405b", "mixtral:8x7b", "deepseek:v3")


def systems(name):
    step = model_step(find_named_model(name).transformer, "h100-8x64", batch=2048)
    return {found.name.split(" (")[0] for found, _ in published_strategies(step, name)}


@pytest.mark.parametrize("name", BIG)
def test_the_big_models_have_one_of_megatron_and_one_of_maxtext(name):
    found = systems(name)
    assert found & MEGATRON
    assert "MaxText" in found


def test_the_others_have_none():
    others = set(named_models()) - set(BIG)
    assert {"deepseek:16b", "bert:large"} < others
    assert all(systems(name) == set() for name in others)


def test_mixtral_as_megatron_lm_has_it():
    step = model_step(find_named_model("mixtral:8x7b").transformer, "h100-8x16", batch=256)
    (found,) = (one for one, _ in published_strategies(step, "mixtral:8x7b") if one.name.startswith("Megatron-LM"))
    par = found.priced.parallelism
    assert (par.tensor, par.pipeline, par.expert, par.data, par.microbatch, par.zero) == (1, 4, 8, 32, 1, 1)
