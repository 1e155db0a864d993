import dataclasses

import pytest

from jaxquard.models import gpt
from tests.models.counts import flops_of_gradient, num_in_init

SMALL = gpt.GptConfig(vocab_size=31, num_layers=3, num_heads=2, model_dim=16, sequence_length=8)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("config", [SMALL, gpt.SIZES["gpt2-small"]], ids=["small", "gpt2-small"])
def test_num_parameters_counts_what_init_makes(config, tied):
    config = dataclasses.replace(config, tied_embeddings=tied)
    assert gpt.num_parameters(config) == num_in_init(gpt, config)


@pytest.mark.parametrize(
    ("name", "released"),
    [
        ("gpt2-small", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
    ],
)
def test_gpt2_sizes_are_those_of_the_released_weights(name, released):
    assert gpt.num_parameters(gpt.SIZES[name]) == released


@pytest.mark.parametrize(
    "name", [name for name in gpt.SIZES if name.startswith(("gpt3-", "gpt-")) and name != "gpt-tiny"]
)
def test_sizes_match_their_names(name):
    number = name.split("-")[1]
    published = float(number[:-1]) * {"m": 1e6, "b": 1e9}[number[-1]]
    assert gpt.num_parameters(gpt.SIZES[name]) == pytest.approx(published, rel=0.02)


@pytest.mark.parametrize("tied", [True, False])
def test_flops_per_token_counts_the_products_of_the_gradient(tied):
    config = dataclasses.replace(SMALL, tied_embeddings=tied)
    assert flops_of_gradient(gpt, config) == gpt.flops_per_token(config)
