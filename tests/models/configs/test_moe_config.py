import dataclasses

import pytest

from jaxquard.models import moe
from tests.models.counts import flops_of_gradient, num_in_init

SMALL = moe.MoeConfig(
    vocab_size=31, num_layers=3, num_heads=2, model_dim=16, sequence_length=8, num_experts=4, mlp_factor=2
)


@pytest.mark.parametrize("config", [SMALL, moe.SIZES["moe-380m"]], ids=["small", "moe-380m"])
def test_num_parameters_counts_what_init_makes(config):
    assert moe.num_parameters(config) == num_in_init(moe, config)


@pytest.mark.parametrize("name", [name for name in moe.SIZES if name != "moe-tiny"])
def test_sizes_match_their_names(name):
    number = name.split("-")[1]
    published = float(number[:-1]) * {"m": 1e6, "b": 1e9}[number[-1]]
    assert moe.num_parameters(moe.SIZES[name]) == pytest.approx(published, rel=0.04)


@pytest.mark.parametrize("capacity_factor", [1.0, 2.0, 4.0])
def test_flops_per_token_counts_the_products_of_the_gradient(capacity_factor):
    config = dataclasses.replace(SMALL, capacity_factor=capacity_factor)
    assert flops_of_gradient(moe, config) == moe.flops_per_token(config)


@pytest.mark.parametrize(
    ("capacity_factor", "length", "capacity"), [(2.0, 8, 4), (1.0, 8, 2), (1.25, 16, 5), (2.0, 7, 3), (0.1, 8, 1)]
)
def test_capacity_is_rounded_down_but_never_0(capacity_factor, length, capacity):
    assert dataclasses.replace(SMALL, capacity_factor=capacity_factor).capacity(length) == capacity


def test_one_expert_is_refused():
    with pytest.raises(ValueError, match=r"num_experts=1, but each token goes to 2\. Choose 2 or more"):
        dataclasses.replace(SMALL, num_experts=1)


@pytest.mark.parametrize("capacity_factor", [0.0, -1.0])
def test_no_capacity_is_refused(capacity_factor):
    with pytest.raises(ValueError, match=rf"capacity_factor={capacity_factor} leaves no room at the experts"):
        dataclasses.replace(SMALL, capacity_factor=capacity_factor)
