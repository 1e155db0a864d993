import dataclasses

import pytest

from jaxquard.models import mixtral
from tests.models.counts import flops_of_gradient, num_in_init

SMALL = mixtral.MixtralConfig(
    vocab_size=31,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    model_dim=16,
    mlp_dim=24,
    sequence_length=8,
    num_experts=4,
    top_k=2,
)
SHARED = dataclasses.replace(SMALL, top_k=3, shared_mlp_dim=12, first_mlp_dim=40, normalises_gates=False)


@pytest.mark.parametrize("config", [SMALL, SHARED, *mixtral.SIZES.values()], ids=["small", "shared", *mixtral.SIZES])
def test_num_parameters_counts_what_init_makes(config):
    assert mixtral.num_parameters(config) == num_in_init(mixtral, config)


@pytest.mark.parametrize(("name", "published"), [("mixtral-8x7b", 46.7e9), ("deepseek-16b", 16.4e9)])
def test_sizes_match_what_was_published(name, published):
    assert mixtral.num_parameters(mixtral.SIZES[name]) == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize("config", [SMALL, SHARED], ids=["small", "shared"])
def test_flops_per_token_counts_the_products_of_the_gradient(config):
    assert int(flops_of_gradient(mixtral, config)) == mixtral.flops_per_token(config)


@pytest.mark.parametrize(("factor", "capacity"), [(1.0, 4), (1.25, 5), (0.1, 1)])
def test_capacity_is_rounded_down_but_never_0(factor, capacity):
    assert dataclasses.replace(SMALL, capacity_factor=factor).capacity(8) == capacity


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"top_k": 5}, r"visits top_k=5 experts, but there are 4"),
        ({"capacity_factor": 0.0}, r"capacity_factor=0\.0 leaves no room"),
        ({"num_kv_heads": 3}, r"num_heads=4 is not a multiple of num_kv_heads=3"),
    ],
)
def test_what_cannot_be_built_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMALL, **changes)
