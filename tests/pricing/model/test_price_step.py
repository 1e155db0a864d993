"""The price of a step: its parts, what must hold for all strategies, and what cannot run."""

import time
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from benchmarks.model_prices import strategies
from jaxquard.cluster import Times, chip_speeds, load_cluster
from jaxquard.errors import StepPriceError
from jaxquard.pricing import (
    Parallelism,
    Transformer,
    check_parallelism,
    find_system,
    find_transformer,
    hide,
    known_systems,
    pipeline_time,
    price_step,
    stage_prices,
)
from jaxquard.schedules import Interleaved, OneFOneB, TaskTimes, play_rows

GPT = Transformer(num_layers=24, hidden=2048, num_heads=16, vocab=51200, seq=2048)
LLAMA = find_transformer("Llama3-70B", seq=8192)
NEMO = find_system("NeMo")
# With 4,096 chips or more, as the largest of the drawn strategies have.
CLUSTERS = ("a100-8x512", "h100-8x512", "h200-8x512", "b200-8x512", "v5e-16x16x16", "v5p-16x16x16")
DEGREES = st.sampled_from((1, 2, 4, 8))


@st.composite
def parallelisms(draw):
    tensor, context, pipeline, data = (draw(DEGREES) for _ in range(4))
    chunks = draw(st.sampled_from((1, 2))) if pipeline > 1 else 1
    return Parallelism(
        tensor=tensor,
        sequence=draw(st.booleans()),
        context=context,
        pipeline=pipeline,
        num_chunks=chunks,
        data=data,
        zero=draw(st.sampled_from((0, 1, 2, 3))),
        microbatch=draw(st.sampled_from((1, 2, 4))),
        global_batch=data * draw(st.sampled_from((8, 16, 32))),
        recompute=draw(st.sampled_from(("none", "selective", "full"))),
        schedule="interleaved" if chunks > 1 else draw(st.sampled_from(("gpipe", "1f1b", "zero-bubble"))),
    )


@given(parallelism=parallelisms(), cluster=st.sampled_from(CLUSTERS), system=st.sampled_from(known_systems()))
def test_a_step_is_the_sum_of_its_parts(parallelism, cluster, system):
    price = price_step(GPT, parallelism, load_cluster(cluster), system)
    parts = (price.compute_s, price.communication_s, price.bubble_s, price.gradient_s, price.optimizer_s, price.other_s)
    assert sum(parts) == pytest.approx(price.time_s)
    assert min(parts) >= 0
    assert price.recompute_s <= price.compute_s
    assert price.peak_bytes == pytest.approx(sum(price.memory.parts.values()))


@given(
    parallelism=parallelisms(), cluster=st.sampled_from(CLUSTERS), kind=st.sampled_from(("tensor", "context", "data"))
)
def test_more_chips_never_compute_more_each(parallelism, cluster, kind):
    assume(getattr(parallelism, kind) < 8)
    hardware = load_cluster(cluster)
    more = replace(parallelism, **{kind: 2 * getattr(parallelism, kind)})
    before, after = (price_step(GPT, one, hardware, NEMO) for one in (parallelism, more))
    # Ceilings: half a tile is computed as a whole one, and the host has as much to issue.
    assert after.compute_s <= 1.02 * before.compute_s


@given(parallelism=parallelisms(), cluster=st.sampled_from(CLUSTERS))
def test_recomputation_costs_time_and_saves_memory(parallelism, cluster):
    hardware = load_cluster(cluster)
    none, full = (
        price_step(GPT, replace(parallelism, recompute=recompute), hardware, NEMO) for recompute in ("none", "full")
    )
    assert full.time_s > none.time_s
    assert full.memory.activation_bytes < none.memory.activation_bytes


def test_one_chip_takes_the_sum_of_its_kernels():
    system = replace(NEMO, elementwise=0.0, loss_bytes=0.0, optimizer_passes=0.0, host_s=0.0)
    cluster = load_cluster("h100")
    chip = chip_speeds(cluster)
    chip = replace(chip, compute=replace(chip.compute, launch_s=0.0))
    one = price_step(GPT, Parallelism(microbatch=4, global_batch=4), cluster, system, chip=chip)
    # Inside of a training step kernels are slower than alone.
    times = Times(cluster, chip.at_speed(0.83))

    def product_s(m, n, k):
        return times.product(m=m, k=k, n=n)

    tokens, hidden = 4 * 2048, 2048
    layer = 0.0
    for n, k in ((3 * hidden, hidden), (hidden, hidden), (4 * hidden, hidden), (hidden, 4 * hidden)):
        layer += product_s(tokens, n, k)
        layer += product_s(tokens, k, n) + product_s(k, n, tokens)
    flops = tokens * GPT.attention_flops_per_token(is_causal=True)
    for is_backward in (False, True):
        layer += times.attention(
            chip.at_speed(0.83).flash["flash3"], flops=flops, seq=2048, head_dim=128, is_backward=is_backward
        )
    head = product_s(tokens, 51200, hidden) + product_s(tokens, hidden, 51200)
    head += product_s(hidden, 51200, tokens)
    embedding = 2 * (2 + 3) * tokens * hidden / (0.9 * 3350e9)
    assert one.time_s == pytest.approx(24 * layer + head + embedding)
    assert one.communication_s == one.bubble_s == one.gradient_s == 0


@pytest.mark.parametrize(("actors", "chunks", "count"), [(4, 1, 8), (8, 1, 32), (4, 2, 8), (8, 3, 24), (4, 2, 10)])
def test_the_closed_form_is_the_players_time(actors, chunks, count):
    schedule = "interleaved" if chunks > 1 else "1f1b"
    parallelism = Parallelism(pipeline=actors, num_chunks=chunks, global_batch=count, schedule=schedule)
    prices = stage_prices(GPT, parallelism, load_cluster("h100"), NEMO)
    middle = prices.stages[1]
    uniform = replace(prices, stages=(middle,) * len(prices.stages), transfer_s=0.0)
    times = TaskTimes(
        forward_s=middle.forward_s, input_gradient_s=middle.input_gradient_s, weight_gradient_s=middle.weight_gradient_s
    )
    made = Interleaved(actors * chunks, actors) if chunks > 1 else OneFOneB(actors)
    played = play_rows(made.rows(count), times)
    assert pipeline_time(uniform, parallelism, overlap=1.0).time_s == pytest.approx(played.makespan_s, rel=0.02)


def test_stages_say_what_pipelines_need():
    parallelism = Parallelism(tensor=4, pipeline=4, num_chunks=5, global_batch=64, schedule="interleaved")
    prices = stage_prices(LLAMA, parallelism, load_cluster("h100-8x2"), NEMO)
    assert len(prices.stages) == 20
    assert prices.transfer_bytes == 8192 * 8192 * 2 / 4
    assert prices.transfer_s > prices.transfer_bytes / 50e9
    first, last = prices.stages[0], prices.stages[-1]
    assert last.forward_s > first.forward_s
    assert first.backward_s == first.input_gradient_s + first.weight_gradient_s
    assert last.memory.parameters > prices.stages[1].memory.parameters


def test_experts_cost_their_active_parameters():
    mixtral = find_transformer("Mixtral-8x7B", seq=4096)
    dense = find_transformer("Mistral-7B", seq=4096)
    cluster = load_cluster("h100")
    sparse, plain = (
        price_step(one, Parallelism(data=8, zero=3, microbatch=4, global_batch=64), cluster, NEMO).compute_s
        for one in (mixtral, dense)
    )
    assert 1.6 < sparse / plain < 2.4
    spread = Parallelism(data=8, zero=1, expert=8, expert_tensor=1, microbatch=4, global_batch=64)
    assert price_step(mixtral, spread, cluster, NEMO).communication_s > 0


def test_gradients_added_by_a_pass_of_their_own_cost_its_bytes():
    """DeepSpeed's optimizer in 16 bits: 12 bytes a parameter, for each microbatch; one alone has nothing to add to."""
    gpt = find_transformer("GPT3-6.7B", seq=2048)
    cluster, system = load_cluster("a100-8"), find_system("Megatron-DeepSpeed")
    fused = replace(system, accumulation_bytes=0.0)
    for count, passes in ((1, 0), (8, 8)):
        parallelism = Parallelism(tensor=8, global_batch=count)
        with_pass, without = (price_step(gpt, parallelism, cluster, one) for one in (system, fused))
        layers = 12 * gpt.num_layers * gpt.hidden**2 / 8
        expected = passes * Times(cluster).memory_pass(12 * layers, num_kernels=0)
        assert with_pass.compute_s - without.compute_s == pytest.approx(expected, rel=0.01, abs=1e-9)


def test_long_sequences_cost_attention():
    short, long = (find_transformer("Llama3-8B", seq=seq) for seq in (4096, 65536))
    cluster = load_cluster("h100")
    costs = [price_step(one, Parallelism(recompute="full"), cluster, NEMO).compute_s / one.seq for one in (short, long)]
    assert 2 < costs[1] / costs[0] < 6


def test_hidden_collectives_slow_the_compute_beside_them():
    assert hide(1.0, 5.0, share=1.0, contention=0.25) == 0.25
    assert hide(1.0, 0.0, share=1.0, contention=0.25) == 1.0
    assert hide(1.0, 5.0, share=0.0, contention=0.25) == 1.0


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ({"tensor": 3}, r"16 heads do not divide among a tensor group of 3. Give a tensor degree that divides 16"),
        ({"pipeline": 8, "num_chunks": 4}, r"make 32 stages, but there are 24 layers. Give fewer actors or chunks"),
        ({"context": 3}, r"a sequence of 2048 tokens does not divide among a context group of 3"),
        ({"expert": 2}, r"expert parallelism of 2 needs experts, but the transformer is dense"),
        ({"tensor": 16, "data": 8, "pipeline": 24}, r"is 3072 devices, but h100 has 1016 chips. Give smaller degrees"),
        ({"data": 16}, r"a global batch of 8 leaves some of 16 replicas without a sequence. Give a global_batch of 16"),
    ],
)
def test_impossible_strategies_are_refused(strategy, message):
    with pytest.raises(StepPriceError, match=message):
        price_step(GPT, Parallelism(global_batch=8, **strategy), load_cluster("h100"), NEMO)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tensor": 0}, "tensor must be a whole number of 1 or more, but is 0"),
        ({"zero": 4}, "zero must be 0, 1, 2 or 3, but is 4"),
        ({"recompute": "some"}, "recompute must be one of none, selective, full, but is 'some'"),
        ({"schedule": "best"}, "schedule must be one of none, gpipe, 1f1b, interleaved, zero-bubble, but is 'best'"),
        ({"data": 8, "shard_group": 3}, "8 replicas do not divide into groups of 3"),
    ],
)
def test_impossible_degrees_are_refused(fields, message):
    with pytest.raises(StepPriceError, match=message):
        Parallelism(**fields)


def test_degrees_must_make_up_the_devices():
    with pytest.raises(
        StepPriceError, match=r"tensor 8 x context 1 x data 2 x pipeline 1 is 16 devices, but there are 3"
    ):
        check_parallelism(GPT, Parallelism(tensor=8, data=2), num_devices=32)


def test_experts_must_divide():
    mixtral = find_transformer("Mixtral-8x7B", seq=4096)
    with pytest.raises(StepPriceError, match="8 experts do not divide among an expert group of 3"):
        check_parallelism(mixtral, Parallelism(data=6, expert=3))
    with pytest.raises(StepPriceError, match="an expert group of 8 does not divide the 4 devices"):
        check_parallelism(mixtral, Parallelism(data=4, expert=8))


def test_impossible_transformers_are_refused():
    with pytest.raises(StepPriceError, match="hidden must be a whole number of 1 or more, but is 0"):
        Transformer(num_layers=1, hidden=0, num_heads=1, vocab=1, seq=1)
    with pytest.raises(StepPriceError, match=r"top_k=9 of 8 experts\. Give a top_k between 1 and 8"):
        replace(GPT, num_experts=8, top_k=9)
    with pytest.raises(StepPriceError, match="no transformer is known as 'my model'"):
        find_transformer("my model", seq=1)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Llama2-70B", 68.98),
        ("LLAMA 3.1 405B", 405.9),
        ("llama3_8b", 8.03),
        ("Mixtral-8x7B", 46.7),
        ("DeepSeek-V3 671B", 671),
        ("Qwen3_30B_a3B", 30.5),
        ("GPT-OSS 120B", 116.8),
        ("Nemotron4-340B", 341),
        ("MPT-7B", 6.65),
        ("GPT-3 175B", 174.6),
    ],
)
def test_published_models_have_their_parameters(name, billions):
    assert find_transformer(name, seq=2048).num_parameters / 1e9 == pytest.approx(billions, rel=0.005)


def test_a_thousand_strategies_take_milliseconds_each():
    start_s = time.process_time()
    clusters = {name: load_cluster(name) for name in ("h100-8x2048", "a100-8x140")}
    models = {name: find_transformer(name, seq=4096) for name in ("GPT3-175B", "Llama3-70B", "Llama3-405B")}
    for (name, parallelism, cluster), _ in zip(strategies(), range(1000), strict=False):
        price_step(models[name], parallelism, clusters[cluster], NEMO)
    # Wanted are 10,000 in 10 s; this machine may be busy.
    assert time.process_time() - start_s < 3


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_kv_heads": -1}, "num_kv_heads must be a whole number of 0 or more, but is -1"),
        ({"ffn": -8}, "ffn must be a whole number of 0 or more, but is -8"),
        ({"hidden": 2.5}, r"hidden must be a whole number of 1 or more, but is 2\.5"),
        ({"vocab": float("nan")}, "vocab must be a whole number of 1 or more, but is nan"),
        ({"seq": "2048"}, "seq must be a whole number of 1 or more, but is '2048'"),
        ({"num_dense_layers": 25}, "num_dense_layers is 25, but there are 24 layers"),
    ],
)
def test_impossible_sizes_are_refused(sizes, message):
    with pytest.raises(StepPriceError, match=message):
        Transformer(**({"num_layers": 24, "hidden": 2048, "num_heads": 16, "vocab": 51200, "seq": 2048} | sizes))


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        ({"tensor": None}, "tensor must be a whole number of 1 or more, but is None"),
        ({"data": 8, "shard_group": -2}, "shard_group must be a whole number of 0 or more, but is -2"),
        ({"recompute_share": 3}, "recompute_share must be between 0 and 1, but is 3"),
    ],
)
def test_degrees_that_are_no_counts_are_refused(strategy, message):
    with pytest.raises(StepPriceError, match=message):
        Parallelism(**strategy)


def test_rounds_that_are_too_large_to_play_cost_about_what_the_player_says():
    actors, chunks, count = 32, 6, 80
    parallelism = Parallelism(pipeline=actors, num_chunks=chunks, global_batch=count, schedule="interleaved")
    deep = replace(GPT, num_layers=192)
    prices = stage_prices(deep, parallelism, load_cluster("h100"), NEMO)
    middle = prices.stages[1]
    uniform = replace(prices, stages=(middle,) * len(prices.stages), transfer_s=0.0)
    times = TaskTimes(
        forward_s=middle.forward_s, input_gradient_s=middle.input_gradient_s, weight_gradient_s=middle.weight_gradient_s
    )
    played = play_rows(Interleaved(actors * chunks, actors).rows(count), times)
    assert pipeline_time(uniform, parallelism, overlap=1.0).time_s == pytest.approx(played.makespan_s, rel=0.05)
