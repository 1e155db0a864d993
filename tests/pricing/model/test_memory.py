"""Memory of a stage: the worked numbers of arXiv 2205.05198, ZeRO, and what does not fit."""

import pytest

from jaxquard.cluster import load_cluster
from jaxquard.errors import InfeasibleStepError
from jaxquard.pricing import (
    Parallelism,
    Transformer,
    find_system,
    find_transformer,
    layer_activation_bytes,
    microbatches_kept,
    price_step,
    stage_prices,
)

MEGATRON = find_system("Megatron-LM 2022")
GPT3 = Transformer(num_layers=96, hidden=12288, num_heads=96, vocab=51200, seq=2048)


def units(**strategy):
    """Activations of one layer, in s b h."""
    parallelism = Parallelism(tensor=8, microbatch=1, **strategy)
    return layer_activation_bytes(GPT3, parallelism, MEGATRON) / (2048 * 12288)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        # Table 2: 10 + 24/t + 5 a s / (h t); (34 + 5 a s / h) / t; the same without scores; 2.
        ({"recompute": "none"}, 10 + 24 / 8 + 5 * 96 * 2048 / 12288 / 8),
        ({"recompute": "none", "sequence": True}, (34 + 5 * 96 * 2048 / 12288) / 8),
        ({"recompute": "selective"}, 10 + 24 / 8),
        ({"recompute": "selective", "sequence": True}, 34 / 8),
        ({"recompute": "full"}, 2),
    ],
)
def test_activations_of_a_layer(strategy, expected):
    assert units(**strategy) == pytest.approx(expected)


def test_an_interleaved_pipeline_keeps_more():
    # Section 4.2.3: 1 + (p - 1) / (p m), of p microbatches.
    parallelism = Parallelism(pipeline=8, num_chunks=3, global_batch=64)
    assert microbatches_kept(parallelism) == pytest.approx(8 * (1 + 7 / 24))
    assert microbatches_kept(Parallelism(pipeline=8, global_batch=64)) == 8
    assert microbatches_kept(Parallelism(pipeline=8, global_batch=64, schedule="gpipe")) == 64
    assert microbatches_kept(Parallelism(pipeline=8, global_batch=4)) == 4


@pytest.mark.parametrize(("zero", "expected"), [(0, 18), (1, 2 + 4 + 12 / 4), (2, 2 + 4 / 4 + 12 / 4)])
def test_zero_shards_state(zero, expected):
    parallelism = Parallelism(data=4, zero=zero, global_batch=4)
    (stage,) = stage_prices(GPT3, parallelism, load_cluster("a100"), MEGATRON).stages
    assert stage.memory.state_bytes / stage.memory.parameters == pytest.approx(expected)


def test_fsdp_holds_a_shard_and_two_gathered_layers():
    parallelism = Parallelism(data=64, zero=3, global_batch=64)
    (stage,) = stage_prices(GPT3, parallelism, load_cluster("a100"), MEGATRON).stages
    whole = stage.memory.parameters
    assert stage.memory.optimizer_bytes == pytest.approx(12 * whole / 64)
    assert stage.memory.weight_bytes < 2 * whole / 20


def test_products_in_8_bits_keep_less():
    llama, nemo = find_transformer("Llama3-8B", seq=8192), find_system("NeMo")
    wide, narrow = (
        layer_activation_bytes(llama, Parallelism(recompute="selective", dtype=dtype), nemo)
        for dtype in ("bf16", "fp8")
    )
    assert 0.7 * wide < narrow < 0.9 * wide


def test_a_step_that_does_not_fit_says_by_how_much_and_where():
    parallelism = Parallelism(tensor=8, global_batch=1)
    with pytest.raises(InfeasibleStepError) as caught:
        price_step(GPT3, parallelism, load_cluster("h100"), MEGATRON, checks_memory=True)
    message = str(caught.value)
    assert "but h100 has 75.2 GB for it" in message
    assert "most of it in optimizer state" in message
    assert "GB too much" in message
    assert message.endswith("zero=1, or a larger tensor or pipeline degree.")


def test_activations_that_do_not_fit_want_recomputation():
    llama = find_transformer("Llama3-8B", seq=8192)
    parallelism = Parallelism(data=64, zero=3, microbatch=16, global_batch=1024)
    with pytest.raises(InfeasibleStepError, match=r"most of it in activations. Recompute more, or take smaller microb"):
        price_step(llama, parallelism, load_cluster("h100"), MEGATRON, checks_memory=True)


def test_devices_beyond_the_heads_of_keys_and_values_keep_one_each():
    one_head = Transformer(num_layers=1, hidden=4096, num_heads=32, num_kv_heads=1, vocab=1000, seq=2048)
    eight_heads = Transformer(num_layers=1, hidden=4096, num_heads=32, num_kv_heads=8, vocab=1000, seq=2048)
    fused = find_system("NeMo")
    kept = [layer_activation_bytes(model, Parallelism(tensor=8), fused) for model in (one_head, eight_heads)]
    assert kept[0] == kept[1]


def test_the_second_actor_is_the_fullest_where_the_first_has_fewer_layers():
    # 126 layers on 16 actors: 7 on both ends, 8 on the others. 15 microbatches of 8 layers are more than 16 of 7.
    llama = find_transformer("Llama3-405B", seq=8192)
    parallelism = Parallelism(tensor=8, sequence=True, pipeline=16, global_batch=64)
    cluster, nemo = load_cluster("h100-8x16"), find_system("NeMo")
    stages = stage_prices(llama, parallelism, cluster, nemo).stages
    layer = layer_activation_bytes(llama, parallelism, nemo)
    memory = price_step(llama, parallelism, cluster, nemo).memory
    assert memory.activation_bytes == pytest.approx(15 * 8 * layer)
    assert stages[0].memory.activation_bytes - stages[0].memory.end_bytes == pytest.approx(7 * layer)
    assert stages[-1].memory.end_bytes > 0
