"""Stages as the simulator takes them, against the closed form of a step."""

import pytest

from jaxquard.cluster import load_cluster
from jaxquard.pricing import Parallelism, find_system, find_transformer, price_step, stage_costs, stage_prices
from jaxquard.schedules import Interleaved, OneFOneB
from jaxquard.simulate import link_actors, play_pipeline

CASES = [
    ("GPT3-175B", 2048, "JaxPP", Parallelism(tensor=8, sequence=True, pipeline=8, num_chunks=6, data=2, zero=1,
        microbatch=4, global_batch=256, schedule="interleaved")),
    ("Llama2-70B", 4096, "NeMo", Parallelism(tensor=4, sequence=True, pipeline=4, num_chunks=5, data=4, zero=1,
        microbatch=1, global_batch=128, schedule="interleaved")),
    ("GPT3-175B", 2048, "Megatron-LM 2022", Parallelism(tensor=8, pipeline=16, data=1, microbatch=1, global_batch=64,
        recompute="full")),
]  # fmt: skip


@pytest.mark.parametrize(("model", "seq", "system", "parallelism"), CASES, ids=[case[2] for case in CASES])
def test_a_played_step_takes_as_long_as_the_closed_form_says(model, seq, system, parallelism):
    """The two share the prices of stages, and not the schedule, the transfers and the sums."""
    par, cluster = parallelism, load_cluster("h100-8x16")
    transformer, profile = find_transformer(model, seq=seq), find_system(system)
    costs = stage_costs(transformer, par, cluster, profile)
    schedule = Interleaved(par.num_stages, par.pipeline) if par.num_chunks > 1 else OneFOneB(par.pipeline)
    playback = play_pipeline(
        schedule,
        costs,
        num_microbatches=par.num_microbatches,
        links=link_actors(cluster, num_actors=par.pipeline, chips_apart=par.tensor * par.data),
    )
    expected = price_step(transformer, par, cluster, profile)
    assert playback.step_time_s == pytest.approx(expected.time_s, rel=0.03)
    assert max(playback.peaks_bytes) == pytest.approx(expected.peak_bytes, rel=0.04)


def test_replicas_add_sums_and_gathers_alone():
    cluster, gpt = load_cluster("h100-8x16"), find_transformer("GPT3-175B", seq=2048)
    system = find_system("JaxPP")
    one, four = (
        stage_costs(gpt, Parallelism(tensor=4, pipeline=8, data=data, zero=1, global_batch=8), cluster, system)
        for data in (1, 4)
    )
    assert one[0].gradient_sum_s == one[0].gather_s == 0
    assert four[0].gradient_sum_s > four[0].gather_s > 0
    assert four[0].output_bytes == one[0].output_bytes == 2048 * 12288 * 2 // 4
    # ZeRO shards the optimizer's state, twelve bytes of fourteen.
    assert four[3].weight_bytes < one[3].weight_bytes / 2
    assert four[3].gradient_bytes == one[3].gradient_bytes


def test_the_ends_of_a_pipeline_work_on_logits():
    cluster, gpt = load_cluster("h100-8x16"), find_transformer("GPT3-175B", seq=2048)
    costs = stage_costs(gpt, Parallelism(tensor=8, pipeline=8, global_batch=8), cluster, find_system("JaxPP"))
    assert costs[-1].forward_s > costs[3].forward_s
    assert costs[-1].forward_working_bytes >= 4 * 2048 * 51200 // 8
    assert costs[3].forward_working_bytes == 0
    assert costs[-1].activation_bytes == costs[3].activation_bytes


def test_time_of_a_task_is_added_once_to_each():
    cluster, gpt = load_cluster("h100-8x16"), find_transformer("GPT3-175B", seq=2048)
    parallelism, system = Parallelism(tensor=8, pipeline=8, global_batch=8), find_system("JaxPP")
    plain, slower = (stage_costs(gpt, parallelism, cluster, system, task_s=task_s)[3] for task_s in (0.0, 1e-3))
    assert slower.forward_s - plain.forward_s == pytest.approx(1e-3)
    assert slower.backward_s - plain.backward_s == pytest.approx(1e-3)


def test_all_layers_of_a_stage_between_the_ends_are_kept():
    # 126 layers on 16 actors: 7 on both ends, 8 on the others.
    cluster, llama = load_cluster("h100-8x16"), find_transformer("Llama3-405B", seq=8192)
    costs = stage_costs(llama, Parallelism(tensor=8, pipeline=16, global_batch=64), cluster, find_system("NeMo"))
    assert costs[1].forward_working_bytes == 0
    assert costs[1].activation_bytes / costs[0].activation_bytes == pytest.approx(8 / 7)


def test_a_pipeline_gathers_the_ends_once_a_step_as_it_does_its_layers():
    cluster, gpt = load_cluster("h100-8x16"), find_transformer("GPT3-175B", seq=2048)
    few, many = (
        stage_prices(
            gpt, Parallelism(pipeline=8, data=16, zero=3, global_batch=16 * count), cluster, find_system("NeMo")
        ).stages
        for count in (1, 64)
    )
    ends = [stages[-1].communication_s - stages[1].communication_s for stages in (few, many)]
    assert 0 < ends[1] < ends[0] / 32
