"""The paper's numbers agree with each other, and with the published steps that come with jaxquard."""

import csv
from importlib import resources

import pytest

from jaxquard.evaluate.jaxpp.paper import load_jaxpp_paper

PAPER = load_jaxpp_paper()


@pytest.mark.parametrize("row", PAPER.table_1, ids=lambda row: row.label)
def test_a_row_of_table_1_adds_up(row):
    assert row.num_gpus == row.pipeline * row.tensor * row.data * row.fsdp
    assert row.global_batch % (row.num_microbatches * row.data * row.fsdp) == 0


def test_table_1_is_that_of_the_published_steps():
    text = (resources.files("jaxquard.evaluate.published") / "data" / "published_steps.csv").read_text()
    published = [row for row in csv.DictReader(text.splitlines()) if row["source"].startswith("JaxPP Table 1")]
    found = [(row.system, row.num_gpus, row.step_time_s, row.tflops) for row in PAPER.table_1]
    assert found == [
        (row["system"], int(row["n_dev"]), float(row["step_time_s"]), float(row["tflops_per_dev"])) for row in published
    ]


def test_headlines_follow_from_table_1():
    def row(system, model="GPT3-175B", num_gpus=None):
        return PAPER.row(system, model, num_gpus)

    jaxpp, llama2 = row("JaxPP"), row("JaxPP", "Llama2-70B")
    expected = {
        "step_gpt3": jaxpp.step_time_s,
        "step_llama2": llama2.step_time_s,
        "step_spmd": row("JAX SPMD PP").step_time_s,
        "step_fsdp": row("JAX FSDP").step_time_s,
        "step_nemo": row("NeMo").step_time_s,
        "over_spmd": 100 * (jaxpp.tflops / row("JAX SPMD PP").tflops - 1),
        "over_fsdp": jaxpp.tflops / row("JAX FSDP").tflops,
        "over_fsdp_llama2": llama2.tflops / row("JAX FSDP", "Llama2-70B").tflops,
        "of_nemo": 100 * jaxpp.tflops / row("NeMo").tflops,
        "of_nemo_llama2": 100 * llama2.tflops / row("NeMo", "Llama2-70B").tflops,
        "scaling_jaxpp": 100 * (1 - row("JaxPP", num_gpus=1024).tflops / jaxpp.tflops),
    }
    for key, value in expected.items():
        assert PAPER.value(key) == pytest.approx(value, rel=0.005), key
    assert {headline.key for headline in PAPER.headlines} - set(expected) == {"scaling_fsdp", "rematerialisation"}
