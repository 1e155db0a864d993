"""Models by name: their parameters against what their authors state."""

import pytest

from jaxquard.errors import PlanError
from jaxquard.models import zoo
from jaxquard.planner.named.models import find_named_model, named_models
from jaxquard.planner.named.scale import scale_transformer

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


ZOO_FIELDS = {"num_layers": "num_layers", "hidden": "model_dim", "num_heads": "num_heads", "seq": "sequence_length"}


@pytest.mark.parametrize("scale", [1, 4, 64, 1000])
@pytest.mark.parametrize("name", [name for name in named_models() if name != "deepseek:v3"])
def test_the_zoo_has_the_same_model_at_every_scale(name, scale):
    transformer = scale_transformer(find_named_model(name).transformer, scale)
    model = zoo.scale_model(zoo.find_model(name), scale)
    config = model.config
    assert {field: getattr(transformer, field) for field in ZOO_FIELDS} == {
        field: getattr(config, other) for field, other in ZOO_FIELDS.items()
    }
    assert transformer.num_kv_heads == getattr(config, "num_kv_heads", config.num_heads)
    assert transformer.num_experts == getattr(config, "num_experts", 0)
    assert transformer.top_k == getattr(config, "top_k", 0)
    # The closed form has Megatron's padded vocabulary of GPT-3, and no segments and transforms of BERT.
    tolerance = 0.03 if name.startswith(("gpt3", "bert")) else 1e-9
    if scale <= 4 or tolerance < 0.01:
        assert transformer.num_parameters == pytest.approx(model.module.num_parameters(config), rel=tolerance)


@pytest.mark.parametrize("name", named_models())
def test_a_scaled_transformer_is_small_and_can_be_shared_by_8_devices(name):
    small = scale_transformer(find_named_model(name).transformer, 64)
    assert small.num_parameters < 12e6
    assert small.num_layers % 4 == small.num_heads % 8 == small.hidden % 64 == small.ffn % 8 == small.vocab % 8 == 0
    assert small.num_kv_heads >= 2
    assert small.num_heads % small.num_kv_heads == 0
    assert small.num_experts % 8 == 0


def test_a_scale_below_1_is_refused():
    with pytest.raises(PlanError, match="scale must be a whole number of 1 or more, but is 0"):
        scale_transformer(find_named_model("llama3:8b").transformer, 0)
    with pytest.raises(ValueError, match="scale='64' is no whole number"):
        zoo.scale_model(zoo.find_model("llama3:8b"), "64")
