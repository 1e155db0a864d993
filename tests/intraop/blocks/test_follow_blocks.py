"""Products of two activations are computed where their operands are."""

import math
from functools import cache

import jax.numpy as jnp
import pytest

from jaxquard.intraop.blocks.contraction import PartitionKind
from jaxquard.intraop.plan.volume import volumes_bytes
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.models.zoo import find_model
from jaxquard.pricing.program.lower_program import lower_program
from tests.intraop.blocks.test_no_communication import collectives
from tests.intraop.compiled_bytes import compiled_bytes
from tests.intraop.patterns import PATTERNS
from tests.intraop.same_numbers import check_step
from tests.intraop.steps import LINE, analyse, inputs, mesh_of, random_assignment, sgd, weights, zoo_types

pytestmark = pytest.mark.usefixtures("quick_compilation")

DISPATCHED, HIDDEN = (8, 8, 8, 64), (8, 32, 64)


def products_of_activations(analysis):
    return [position for position, found in analysis.graph.contractions.items() if not found.has_state]


def expert_parallel(analysis):
    """Experts sharded by expert, and everything else by rows."""
    return {block.number: (block.names[0],) for block in analysis.blocks}


@cache
def compiled_experts(num_layers):
    analysis = analyse(*zoo_types("moe-tiny", num_layers=num_layers))
    return lower_program(StepPrograms(analysis).write_step(expert_parallel(analysis)), mesh=mesh_of(**LINE)).compile()


class TestExperts:
    # In two layers a boundary lies between the blocks, in one it does not.
    @pytest.mark.parametrize("num_layers", [1, pytest.param(2, marks=pytest.mark.slow)])
    def test_tokens_go_to_experts_and_back_from_all_to_all(self, num_layers):
        """Twice forward and twice backward; nothing is gathered."""
        found = collectives(compiled_experts(num_layers))
        # XLA's all-to-all has one operand for each device.
        part = math.prod(DISPATCHED) // 8 // 8
        assert {key: count for key, count in found.items() if key[0] != "all-reduce"} == {("all-to-all", part): 4 * 8}

    def test_only_gradients_of_state_are_summed_so_the_gates_communicate_nothing(self):
        analysis = analyse(*zoo_types("moe-tiny", num_layers=1))
        found = collectives(compiled_experts(1))
        step = analysis.graph.step.jaxpr
        sizes = {math.prod(var.aval.shape) for var in step.invars if var in analysis.graph.state}
        assert {size for name, size in found if name == "all-reduce"} <= sizes

    def test_the_symbolic_volume_is_that_of_the_compiled_step(self):
        analysis = analyse(*zoo_types("moe-tiny", num_layers=1))
        config = find_model("moe-tiny").config
        (moved,) = volumes_bytes(StepPrograms(analysis), [expert_parallel(analysis)])
        # The embedding is the head: XLA on CPU sums its two gradients one by one, on others it adds them first.
        tied_bytes = 14 / 8 * 4 * config.vocab_size * config.model_dim
        assert moved + tied_bytes == pytest.approx(compiled_bytes(compiled_experts(1).as_text()), rel=1e-3)

    def test_dispatch_follows_the_attention_and_combine_the_experts(self):
        analysis = analyse(*zoo_types("moe-tiny", num_layers=1))
        # The first two are the attention's.
        dispatch, combine = products_of_activations(analysis)[2:]
        assert (analysis.owners[dispatch], analysis.owners[combine]) == (2, 4)
        attention, down = analysis.blocks[2], analysis.blocks[4]
        assert {dispatch} < set(attention.followers)
        assert {combine} < set(down.followers)
        # The residual sum is taken along, so one value leaves the layer.
        (last,) = analysis.graph.equations[down.followers[-1]].outvars
        assert last.aval.shape == HIDDEN
        assert {choice.name: choice.follower_dims.get(last) for choice in down.choices} == {
            "batch 0": 0,
            "rows": 0,
            "columns": 0,
            "contracted": None,
        }

    def test_where_a_block_leaves_its_results_whole_later_ones_decide(self):
        analysis = analyse(*zoo_types("moe-tiny", num_layers=1))
        assert not analysis.blocks[2].choice("contracted").follower_dims
        assert analysis.blocks[2].choice("rows").follower_dims


class TestOthers:
    def test_attention_follows_a_fused_product_in_unequal_parts_that_is_sharded_by_rows(self):
        analysis = analyse(*PATTERNS["queries, keys, values in unequal parts"]())
        block = analysis.blocks[0]
        outs = [analysis.graph.equations[position].outvars[0] for position in products_of_activations(analysis)]
        assert [block.choice("rows").follower_dims[out] for out in outs] == [0, 0]
        # A partition of the columns ends where the parts are taken apart.
        assert not block.choice("columns").follower_dims

    def test_a_product_without_batch_dims_is_an_input_branch(self):
        """No dim of it shards both operands, so it follows none."""

        def loss(params, batch):
            hidden = jnp.tanh(batch @ params["w1"])
            return jnp.sum(((hidden.T @ hidden) / 16 @ params["w2"]) ** 2)

        step, args = sgd(loss), (weights(w1=(32, 64), w2=(64, 64)), inputs(16, 32))
        analysis = analyse(step, args)
        assert [choice.follower_dims for choice in analysis.blocks[0].choices] == [{}] * 3
        check_step(step, args, analysis, [random_assignment(analysis, 1)], mesh=mesh_of(x=8))

    def test_the_batch_dim_at_which_a_partition_arrives_is_taken(self):
        """Of the batch dims a and b, the one along which the block is sharded."""

        def loss(params, batch):
            hidden = jnp.einsum("abd,de->abe", batch, params["w1"])
            # A sum that ends the block under one of its partitions.
            hidden = hidden - hidden.mean(-1, keepdims=True)
            mixed = jnp.einsum("abe,abf->abef", hidden, jnp.tanh(hidden))
            return jnp.sum(jnp.einsum("abef,fg->abeg", mixed, params["w2"]) ** 2)

        step, args = sgd(loss), (weights(w1=(32, 16), w2=(16, 64)), inputs(4, 16, 32))
        analysis = analyse(step, args)
        (product,) = products_of_activations(analysis)
        (out,) = analysis.graph.equations[product].outvars
        rows = analysis.blocks[0].choice("rows")
        assert rows.kind is PartitionKind.ROWS
        assert rows.follower_dims[out] == rows.partitions[0].out_dim == 1
        check_step(step, args, analysis, [random_assignment(analysis, 0)], mesh=mesh_of(x=8))
