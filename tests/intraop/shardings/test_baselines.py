import jax
import jax.numpy as jnp
import pytest

from jaxquard.intraop.segments.analysis import analyse_step
from jaxquard.intraop.shardings.baselines import baselines
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.intraop.step.traced_step import trace_step
from tests.intraop.zoo_analyses import analyse_model

MODELS = ("gpt-tiny", "bert-tiny", "llama-tiny", "moe-tiny")
LAYER = ["columns", "contracted", "columns", "contracted"]


def names(found: dict, name: str, axis: int = -1) -> list[str]:
    return [choice[axis] for choice in found[name].assignment.values()]


@pytest.mark.parametrize("model", MODELS)
def test_every_block_has_a_choice_that_it_knows(model: str):
    analysis = analyse_model(model)
    for baseline in baselines(analysis).values():
        assert list(baseline.assignment) == [block.number for block in analysis.blocks]
        for block in analysis.blocks:
            for name in baseline.assignment[block.number]:
                assert block.choice(name).num_chunks % 8 == 0


@pytest.mark.parametrize("model", MODELS)
def test_data_parallel_shards_rows(model: str):
    found = baselines(analyse_model(model))
    for name, storage in (("data parallel", "as used"), ("zero 1", "zero 1"), ("zero 3", "zero 3")):
        assert set(names(found, name)) == {"rows"}
        assert found[name].storage is Storage(storage)
        assert found[name].name == name


@pytest.mark.parametrize(("model", "head"), [("gpt-tiny", 1), ("bert-tiny", 2), ("llama-tiny", 1), ("moe-tiny", 1)])
def test_megatron_alternates(model: str, head: int):
    assert names(baselines(analyse_model(model)), "megatron") == ["contracted", *LAYER, *LAYER, *["columns"] * head]


@pytest.mark.parametrize(("model", "head"), [("gpt-tiny", 1), ("bert-tiny", 2), ("llama-tiny", 1), ("moe-tiny", 1)])
def test_sequence_parallel_scatters_the_sums(model: str, head: int):
    layer = ["scattered" if name == "contracted" else name for name in LAYER]
    found = names(baselines(analyse_model(model)), "megatron, sequence parallel")
    assert found == ["scattered", *layer, *layer, *["columns"] * head]


def test_on_two_axes_the_outer_one_shards_rows():
    analysis = analyse_model("gpt-tiny", axes=(("data", 2), ("model", 4)))
    found = baselines(analysis)
    assert set(found["data parallel"].assignment.values()) == {("rows", "rows")}
    for name in ("megatron", "megatron, sequence parallel"):
        assert set(names(found, name, 0)) == {"rows"}
    assert names(found, "megatron") == ["contracted", *LAYER, *LAYER, "columns"]
    assert names(found, "megatron, sequence parallel").count("scattered") == 5


def test_rows_that_two_axes_cannot_share_are_sharded_by_one():
    analysis = analyse_model("gpt-tiny", batch_size=4, axes=(("data", 2), ("model", 4)))
    for names_of_block in baselines(analysis)["data parallel"].assignment.values():
        assert "rows" in names_of_block


def test_a_product_of_data_with_data_takes_its_batch():
    def step(state, data):
        def loss(state):
            scores = jnp.einsum("bik,bjk->bij", data * state, data)
            return jnp.sum(scores**2)

        return state - jax.grad(loss)(state)

    analysis = analyse_step(trace_step(step, (jnp.zeros(5), jnp.zeros((8, 3, 5)))), axes={"x": 8})
    found = baselines(analysis)
    assert names(found, "data parallel") == names(found, "megatron") == ["batch 0"]
