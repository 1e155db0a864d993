"""Parallel blocks and segments of the zoo's models and of what else users write."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxquard.errors import ShardingError
from jaxquard.intraop.segments.analysis_text import analysis_text
from jaxquard.intraop.step.phases import EquationPhase
from jaxquard.ir.source import source_line
from tests.intraop.patterns import PATTERNS, accumulated, gptj
from tests.intraop.steps import ZOO, analyse, inputs, names_of, sgd, weights, zoo_types
from tests.slow_but_for import slow_but_for

THREE = ("rows", "columns", "contracted")


def products(analysis, block):
    """The operands of a block's contractions, forward."""
    return [
        tuple(atom.aval.shape for atom in analysis.graph.equations[position].invars)
        for position in analysis.blocks[block].contractions
    ]


def kinds(analysis):
    return [segment.kind for segment in analysis.segments]


def shape_of(analysis):
    """Blocks and segments, without the positions of equations."""
    blocks = [
        (block.names, [choice.num_chunks for choice in block.choices], products(analysis, block.number))
        for block in analysis.blocks
    ]
    return blocks, [(segment.kind, segment.blocks) for segment in analysis.segments]


@pytest.mark.parametrize("name", ZOO)
def test_blocks_and_segments_of_the_zoo(name, golden):
    golden(analysis_text(analyse(*zoo_types(name))), name)


class TestTransformerLayers:
    @pytest.mark.parametrize("name", ["gpt-tiny", "bert-tiny", "llama-tiny"])
    def test_a_layer_has_four_blocks_of_three_choices(self, name):
        analysis = analyse(*zoo_types(name))
        layers = [segment for segment in analysis.segments if len(segment.blocks) == 4]
        assert len(layers) == 2
        for layer in layers:
            assert [analysis.blocks[block].names for block in layer.blocks] == [THREE] * 4

    @pytest.mark.parametrize(
        "name", slow_but_for(["gpt2-small", "bert-base", "moe-380m", "llama-2-7b"], ["gpt2-small", "moe-380m"])
    )
    def test_so_it_has_in_published_sizes(self, name):
        """Their heads, over 30 to 50 thousand words, are up to 65 times as large as the smallest product of a layer."""
        small = re.split(r"\d?-", name)[0] + "-tiny"
        found, known = (analyse(*zoo_types(one, num_layers=2), {"x": 4}) for one in (name, small))
        assert len(found.blocks) == len(known.blocks)
        assert names_of(found)[1:9] == names_of(known)[1:9]

    @pytest.mark.parametrize("times", [1, 2, 4])
    def test_a_head_is_no_measure_however_often_it_is_used(self, times):
        """It is 64 times as large as the layers' products, and a router has less than a 32nd of these."""

        def score(params, batch):
            for layer in ("w1", "w2"):
                batch = jnp.tanh(batch @ params[layer].astype("float32")) * jnp.sum(batch @ params["router"])
            return jnp.sum(batch @ params["head"].astype("float32"))

        def loss(params, batch):
            return sum(score(params, number * batch) for number in range(1, 1 + times))

        args = weights(w1=(264, 264), w2=(264, 264), router=(264, 8), head=(264, 64 * 264)), inputs(8, 264)
        args = jax.tree.map(lambda leaf: leaf.astype("bfloat16") if leaf.shape[1] > 8 else leaf, args[0]), args[1]
        analysis = analyse(sgd(loss), args)
        assert {products(analysis, block.number)[0][1] for block in analysis.blocks} == {(264, 264), (264, 64 * 264)}
        assert len(analysis.blocks) == 3 * times

    def test_nor_are_the_heads_of_two_models(self):
        def loss(params, batch):
            for layer in ("w1", "w2"):
                batch = jnp.tanh(batch @ params[layer])
            return jnp.sum(batch @ params["head"] - batch @ params["other head"])

        head = (64, 64 * 64)
        args = weights(**{"w1": (64, 64), "w2": (64, 64), "head": head, "other head": head}), inputs(8, 64)
        assert len({products(analyse(sgd(loss), args), block)[0][1] for block in range(3)}) == 2

    def test_nor_are_small_products_that_recur(self):
        """Two gates of a thousandth of the layers, all of which differ, begin no blocks."""

        def loss(params, batch):
            for layer in ("w1", "w2"):
                batch = jnp.tanh(batch @ params[layer]) * jnp.sum(params["gate " + layer] @ jnp.ones(7))
            return jnp.sum(batch)

        args = weights(**{"w1": (256, 512), "w2": (512, 128), "gate w1": (3, 7), "gate w2": (3, 7)}), inputs(8, 256)
        assert len(analyse(sgd(loss), args).blocks) == 2

    @pytest.mark.parametrize(
        "name",
        ["queries, keys, values minor", "queries, keys, values per head", "queries, keys, values in thirds"],
    )
    def test_fused_queries_keys_and_values_are_one_block_with_the_attention(self, name):
        analysis = analyse(*PATTERNS[name]())
        assert names_of(analysis) == [THREE] * 4
        assert len(analysis.blocks[0].contractions) == 3
        # The columns are sharded between heads.
        assert analysis.blocks[0].choice("columns").num_chunks == 8

    def test_unequal_parts_of_a_fused_product_end_its_block_so_the_attention_only_follows_it(self):
        """All queries, then all keys: an eighth of the columns is no eighth of the heads of each."""
        analysis = analyse(*PATTERNS["queries, keys, values in unequal parts"]())
        assert names_of(analysis) == [THREE] * 4
        assert len(analysis.blocks[0].contractions) == 1
        attention = [
            position
            for position, found in analysis.graph.contractions.items()
            if not found.has_state and analysis.graph.phases[position] is EquationPhase.FORWARD
        ]
        assert [analysis.owners[position] for position in attention] == [0, 0]
        assert set(attention) < set(analysis.blocks[0].followers)

    def test_queries_keys_and_values_apart_begin_one_block(self):
        analysis = analyse(*zoo_types("bert-tiny"))
        assert len(analysis.blocks[1].seeds) == 3

    def test_gate_and_up_begin_one_block(self):
        analysis = analyse(*zoo_types("llama-tiny"))
        assert len(analysis.blocks[3].seeds) == 2
        assert products(analysis, 3) == [((8, 32, 64), (64, 192))] * 2

    def test_fewer_heads_of_keys_than_of_queries_are_sharded_together(self):
        analysis = analyse(*PATTERNS["grouped queries"]())
        assert names_of(analysis) == [THREE] * 2
        assert len(analysis.blocks[0].contractions) == 5
        assert analysis.blocks[0].choice("columns").num_chunks == 8

    def test_experts_have_one_choice_more(self):
        analysis = analyse(*zoo_types("moe-tiny"))
        four = [block for block in analysis.blocks if len(block.choices) == 4]
        assert [block.names for block in four] == [("batch 0", *THREE)] * 2
        assert products(analysis, four[0].number)[0] == ((8, 8, 8, 64), (8, 64, 256))

    def test_attention_beside_the_mlp_is_four_blocks(self):
        analysis = analyse(*gptj())
        assert names_of(analysis) == [THREE] * 4
        assert [len(block.contractions) for block in analysis.blocks] == [5, 1, 1, 1]

    def test_dropout_of_attention_weights_stays_in_the_block(self):
        analysis = analyse(*PATTERNS["attention dropout"]())
        assert [len(block.contractions) for block in analysis.blocks] == [5, 1]

    def test_cross_attention_has_blocks_for_the_queries_and_for_the_memory(self):
        analysis = analyse(*PATTERNS["cross attention"]())
        assert [len(block.seeds) for block in analysis.blocks] == [3, 1, 3, 1, 1, 2, 1]


class TestDepth:
    def test_two_layers_and_twelve_have_the_same_unique_segments(self):
        few, many = (analyse(*zoo_types("gpt-tiny", num_layers=count)) for count in (2, 12))
        assert kinds(few) == [0, 1, 1, 2]
        assert kinds(many) == [0, *[1] * 12, 2]

        def unique(analysis):
            first = {segment.kind: segment for segment in reversed(analysis.segments)}
            return [[products(analysis, block) for block in first[kind].blocks] for kind in sorted(first)]

        assert unique(few) == unique(many)

    @pytest.mark.parametrize("name", ["bert-tiny", "llama-tiny"])
    def test_layers_are_one_kind_in_other_models_too(self, name):
        assert kinds(analyse(*zoo_types(name, num_layers=6))) == [0, *[1] * 6, 2]

    def test_layers_with_and_without_experts_alternate(self):
        found = kinds(analyse(*zoo_types("moe-tiny", num_layers=8)))
        assert len(set(found)) <= 5
        repeated = max(set(found), key=found.count)
        assert found.count(repeated) >= 3

    def test_layers_beside_each_other_are_one_kind(self):
        """The first has no layer before it, and may be another."""
        found = kinds(analyse(*gptj(6)))
        assert len(set(found)) <= 3
        assert max(found.count(kind) for kind in found) >= 4


class TestForms:
    """The same step, written otherwise."""

    @pytest.mark.parametrize("name", ZOO)
    def test_a_checkpoint_changes_neither_blocks_nor_segments(self, name):
        plain, rematted = (analyse(*zoo_types(name, remat=remat)) for remat in (False, True))
        assert len(rematted.owners) > len(plain.owners)
        assert shape_of(plain) == shape_of(rematted)

    def test_nor_does_a_jit(self):
        step, args = zoo_types("gpt-tiny")
        assert shape_of(analyse(step, args)) == shape_of(analyse(jax.jit(step), args))

    def test_nor_shapes_in_place_of_arrays(self):
        step, args = zoo_types("gpt-tiny")
        assert shape_of(analyse(step, args)) == shape_of(analyse(step, jax.eval_shape(lambda: args)))

    @pytest.mark.parametrize("changes", [{"optimizer": "adam"}, {"dropout_rate": 0.1}])
    def test_nor_an_optimizer_nor_dropout(self, changes):
        assert shape_of(analyse(*zoo_types("gpt-tiny"))) == shape_of(analyse(*zoo_types("gpt-tiny", **changes)))

    def test_low_precision_changes_no_blocks(self):
        plain, low = (analyse(*zoo_types("gpt-tiny", dtype=dtype)) for dtype in (jnp.float32, jnp.bfloat16))
        assert shape_of(plain) == shape_of(low)

    def test_tied_embeddings_change_no_blocks(self):
        plain, tied = (analyse(*zoo_types("gpt-tiny", tied_embeddings=is_tied)) for is_tied in (False, True))
        assert shape_of(plain) == shape_of(tied)

    def test_without_a_gradient_there_are_the_same_blocks(self):
        step, (state, batch) = zoo_types("gpt-tiny")

        def evaluate(state, batch):
            return step(state, batch)[1]["loss"]

        trained, evaluated = analyse(step, (state, batch)), analyse(evaluate, (state, batch))
        assert set(evaluated.graph.phases) == {EquationPhase.FORWARD}
        # State is known by being returned, and here it is not: a table looks like data, its look-up begins no block.
        assert shape_of(evaluated)[0] == shape_of(trained)[0][1:]

    def test_clipping_by_the_global_norm_changes_no_blocks(self):
        assert names_of(analyse(*PATTERNS["clipped"]())) == [THREE] * 3

    def test_optax_changes_no_blocks(self):
        optax = pytest.importorskip("optax")
        step, (state, batch) = zoo_types("gpt-tiny")
        optimizer: Any = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))

        def with_optax(state, batch):
            after, metrics = step(state, batch)
            grads = jax.tree.map(jnp.subtract, state["params"], after["params"])
            updates, moments = optimizer.update(grads, state["moments"], state["params"])
            return after | {"params": optax.apply_updates(state["params"], updates), "moments": moments}, metrics

        moments = jax.eval_shape(optimizer.init, state["params"])
        found = analyse(with_optax, (state | {"moments": moments}, batch))
        assert shape_of(found) == shape_of(analyse(step, (state, batch)))


class TestOtherModels:
    def test_a_plain_mlp_has_a_block_for_each_product(self):
        analysis = analyse(*PATTERNS["mlp"]())
        assert names_of(analysis) == [THREE] * 3
        assert [product for block in (0, 1, 2) for product in products(analysis, block)] == [
            ((16, 32), (32, 64)),
            ((16, 64), (64, 64)),
            ((16, 64), (64, 16)),
        ]

    def test_a_convolution_is_sharded_by_batch_and_features(self):
        analysis = analyse(*PATTERNS["convolutions"]())
        assert names_of(analysis) == [THREE] * 2
        assert [choice.num_chunks for choice in analysis.blocks[1].choices] == [8, 32, 16]

    def test_weights_may_stand_on_the_left(self):
        analysis = analyse(*PATTERNS["swapped operands"]())
        assert [[choice.partitions[0].size for choice in block.choices] for block in analysis.blocks] == [
            [8, 256, 64],
            [8, 64, 256],
        ]

    def test_a_vmap_over_the_data_gives_the_same_as_a_batch(self):
        analysis = analyse(*PATTERNS["vmapped data"]())
        assert [[choice.partitions[0].size for choice in block.choices] for block in analysis.blocks] == [
            [16, 128, 64],
            [16, 64, 128],
        ]

    def test_an_ensemble_is_one_block_sharded_between_its_members(self):
        analysis = analyse(*PATTERNS["vmapped weights"]())
        assert len(analysis.blocks) == 1
        assert analysis.blocks[0].choice("columns").num_chunks == 8

    def test_what_a_step_closes_over_is_no_state_but_multiplies_data(self):
        assert names_of(analyse(*PATTERNS["frozen weights"]())) == [THREE] * 3

    def test_a_learning_rate_is_no_state_though_the_loss_has_its_type(self):
        step, args = PATTERNS["key in the state"]()
        assert analyse(step, args).graph.step.result_of_input == (0, 1, 2, None, None, None)

    def test_a_step_whose_products_all_stand_in_a_loop_is_refused(self):
        found = r"none outside of the loop at patterns.py:\d+\. .* a loop over microbatches .* hides the layers"
        with pytest.raises(ShardingError, match=found):
            analyse(*accumulated())

    def test_a_step_without_products_is_refused_with_what_it_computes(self):
        with pytest.raises(
            ShardingError, match=r"this one has none: it computes only mul. Pass the whole training step"
        ):
            analyse(lambda state, batch: (state * 2, batch), (jnp.ones(8), jnp.ones(4)))

    def test_blocks_name_the_users_lines(self):
        analysis = analyse(*PATTERNS["mlp"]())
        lines = [source_line(block.seeds[0].equation) for block in analysis.blocks]
        assert all(line.startswith("patterns.py:") for line in lines)
        assert len(set(lines)) == 3
