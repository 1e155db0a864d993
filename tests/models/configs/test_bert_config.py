import dataclasses

import pytest

from jaxquard.models import bert
from tests.models.counts import flops_of_gradient, num_in_init

SMALL = bert.BertConfig(vocab_size=131, num_layers=3, num_heads=2, model_dim=16, sequence_length=8)


@pytest.mark.parametrize("config", [SMALL, bert.SIZES["bert-base"]], ids=["small", "bert-base"])
def test_num_parameters_counts_what_init_makes(config):
    assert bert.num_parameters(config) == num_in_init(bert, config)


# The released weights with pooler (768² + 768, 1024² + 1024), which goes with the loss left out here, and without
# the head on masked tokens (a transform, its norm, a bias for each token), which they do not all carry.
@pytest.mark.parametrize(
    ("name", "released", "pooler", "head"),
    [
        ("bert-base", 109_482_240, 768 * 768 + 768, 768 * 768 + 768 + 2 * 768 + 30522),
        ("bert-large", 335_141_888, 1024 * 1024 + 1024, 1024 * 1024 + 1024 + 2 * 1024 + 30522),
    ],
)
def test_sizes_are_those_of_the_released_weights(name, released, pooler, head):
    assert bert.num_parameters(bert.SIZES[name]) == released - pooler + head


def test_flops_per_token_counts_the_products_of_the_gradient():
    assert flops_of_gradient(bert, SMALL) == bert.flops_per_token(SMALL)


def test_the_mask_must_be_a_token():
    with pytest.raises(
        ValueError, match=r"mask_token=103 is not one of the vocab_size=31 tokens\. Choose one below 31"
    ):
        dataclasses.replace(SMALL, vocab_size=31)
