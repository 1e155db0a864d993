import dataclasses

import pytest

from jaxquard.models import llama
from tests.models.counts import flops_of_gradient, num_in_init

SMALL = llama.LlamaConfig(
    vocab_size=31, num_layers=3, num_heads=4, num_kv_heads=2, model_dim=16, mlp_dim=24, sequence_length=8
)


@pytest.mark.parametrize("config", [SMALL, llama.SIZES["llama-2-7b"]], ids=["small", "llama-2-7b"])
def test_num_parameters_counts_what_init_makes(config):
    assert llama.num_parameters(config) == num_in_init(llama, config)


@pytest.mark.parametrize(
    ("name", "released"),
    [("llama-2-7b", 6_738_415_616), ("llama-2-13b", 13_015_864_320), ("llama-2-70b", 68_976_648_192)],
)
def test_sizes_are_those_of_the_released_weights(name, released):
    assert llama.num_parameters(llama.SIZES[name]) == released


@pytest.mark.parametrize("num_kv_heads", [1, 2, 4])
def test_flops_per_token_counts_the_products_of_the_gradient(num_kv_heads):
    config = dataclasses.replace(SMALL, num_kv_heads=num_kv_heads)
    assert flops_of_gradient(llama, config) == llama.flops_per_token(config)


def test_key_heads_must_divide_the_heads():
    with pytest.raises(ValueError, match=r"num_heads=4 is not a multiple of num_kv_heads=3\. Choose num_kv_heads"):
        dataclasses.replace(SMALL, num_kv_heads=3)


def test_a_head_must_be_even():
    with pytest.raises(ValueError, match=r"heads of 3 \(model_dim=12 over num_heads=4\) cannot turn"):
        dataclasses.replace(SMALL, model_dim=12)
