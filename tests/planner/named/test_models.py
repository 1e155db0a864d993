"""Models by name: their parameters against what their authors state."""

import pytest

from jaxquard.planner.named.models import find_named_model, named_models

WANTED = [
    *("gpt3:175b", "llama2:70b", "llama3:8b", "llama3:70b", "llama3:405b"),
    *("mixtral:8x7b", "deepseek:16b", "deepseek:v3", "bert:large"),
]


@pytest.mark.parametrize("name", sorted({*WANTED, *named_models()}))
def test_parameters_are_those_that_were_published(name):
    model = find_named_model(name)
    assert model.name == name
    assert model.transformer.num_parameters == pytest.approx(model.published_parameters, rel=0.02)
    assert model.source


def test_names_may_be_written_in_capitals():
    assert find_named_model(" LLaMA3:405B ").name == "llama3:405b"
