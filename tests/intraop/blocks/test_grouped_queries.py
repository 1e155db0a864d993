"""Fewer heads of keys and values than of queries: sharded by groups, or whole if there are fewer than devices."""

import math

import jax
import jax.numpy as jnp
import pytest

from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.intraop.shardings.whole_step import write_whole_step
from jaxquard.pricing.program.lower_program import lower_program
from tests.intraop.blocks.test_no_communication import collectives
from tests.intraop.patterns import PATTERNS, attention, norm
from tests.intraop.same_numbers import check_step
from tests.intraop.steps import analyse, inputs, mesh_of, sgd, weights

BATCH, LENGTH, DIM, HEADS = 8, 6, 64, 8
HEAD_DIM = DIM // HEADS
HIDDEN = BATCH * LENGTH * DIM


def repeated(q, k, v):
    """Keys and values are repeated for the queries of their group."""
    k, v = (jnp.repeat(part, HEADS // part.shape[2], axis=2) for part in (k, v))
    return attention(q, k, v)


def grouped(q, k, v):
    """Queries have a dim of groups."""
    q = q.reshape(*q.shape[:2], k.shape[2], -1, HEAD_DIM)
    scores = jax.nn.softmax(jnp.einsum("bqhgk,bshk->bhgqs", q, k))
    return jnp.einsum("bhgqs,bshk->bqhgk", scores, v)


def layers(attend, kv_heads):
    def loss(params, x):
        for layer in params:
            normed = norm(x)
            q, k, v = (
                (normed @ layer[name]).reshape(*x.shape[:2], count, HEAD_DIM)
                for name, count in (("q", HEADS), ("k", kv_heads), ("v", kv_heads))
            )
            x = x + attend(q, k, v).reshape(x.shape) @ layer["out"]
        return jnp.mean(x**2)

    narrow = (DIM, kv_heads * HEAD_DIM)
    params = [weights(q=(DIM, DIM), k=narrow, v=narrow, out=(DIM, DIM)) for _ in range(2)]
    return sgd(loss), (params, inputs(BATCH, LENGTH, DIM))


def layers_in_dims(kv_heads, group):
    """Weights have their heads, and the queries of a head of keys, in dims of their own."""

    def loss(params, x):
        for layer in params:
            normed = norm(x)
            q = jnp.einsum("bld,dhgk->blhgk", normed, layer["q"])
            k, v = (jnp.einsum("bld,dhk->blhk", normed, layer[name]) for name in ("k", "v"))
            scores = jax.nn.softmax(jnp.einsum("bqhgk,bshk->bhgqs", q, k))
            attended = jnp.einsum("bhgqs,bshk->bqhgk", scores, v)
            x = x + jnp.einsum("blhgk,hgkd->bld", attended, layer["out"])
        return jnp.mean(x**2)

    narrow, wide = (kv_heads, HEAD_DIM), (kv_heads, group, HEAD_DIM)
    shapes = {"q": (DIM, *wide), "k": (DIM, *narrow), "v": (DIM, *narrow), "out": (*wide, DIM)}
    num_queries, num_keys = math.prod(wide), math.prod(narrow)
    flat = weights(q=(DIM, num_queries), k=(DIM, num_keys), v=(DIM, num_keys), out=(num_queries, DIM))
    layer = {name: flat[name].reshape(shape) for name, shape in shapes.items()}
    return sgd(loss), ([layer] * 2, inputs(BATCH, LENGTH, DIM))


def by_heads(analysis):
    return dict(enumerate([("columns",), ("contracted",)] * (len(analysis.blocks) // 2)))


def large_collectives(analysis):
    """By name and elements, without the loss."""
    program = write_whole_step(StepPrograms(analysis), by_heads(analysis))
    found = collectives(lower_program(program, mesh=mesh_of(**analysis.axes)).compile())
    return {key: count for key, count in found.items() if key[1] > 1}


# Twice the sum of each layer's output, and once the gradient of the second layer's input.
SUMS = {("all-reduce", HIDDEN): 3}


class TestGroups:
    @pytest.mark.parametrize("attend", [repeated, grouped])
    @pytest.mark.parametrize("num_devices", [2, pytest.param(4, marks=pytest.mark.slow)])
    def test_as_many_heads_of_keys_as_devices_are_sharded_with_their_queries(self, attend, num_devices):
        analysis = analyse(*layers(attend, 4), {"x": num_devices})
        assert [len(block.contractions) for block in analysis.blocks] == [5, 1] * 2
        assert analysis.blocks[0].choice("columns").num_chunks == 4
        assert all(one.out_dim is not None for one in analysis.blocks[0].choice("columns").partitions)

    @pytest.mark.usefixtures("quick_compilation")
    def test_attention_then_communicates_nothing(self):
        analysis = analyse(*layers(grouped, 4), {"x": 4})
        found = large_collectives(analysis)
        # The gradient of the input in parts for queries, keys and values.
        assert found == {("all-reduce", HIDDEN): found["all-reduce", HIDDEN]}
        assert found["all-reduce", HIDDEN] <= 2 + 3


class TestFewerHeadsThanDevices:
    @pytest.mark.parametrize(("attend", "kv_heads"), [(repeated, 2), (repeated, 4), (grouped, 1)])
    def test_queries_are_sharded_and_keys_and_values_whole(self, attend, kv_heads):
        analysis = analyse(*layers(attend, kv_heads))
        assert [len(block.contractions) for block in analysis.blocks] == [5, 1] * 2
        columns = analysis.blocks[0].choice("columns")
        assert columns.num_chunks == HEADS
        assert [one.out_dim for one in columns.partitions] == [2, None, None]
        # A 2D product would shard the columns of all.
        assert not analysis.blocks[0].product_choices

    @pytest.mark.usefixtures("quick_compilation")
    @pytest.mark.parametrize("kv_heads", [2, pytest.param(4, marks=pytest.mark.slow)])
    def test_only_the_gradients_of_keys_and_values_are_summed_and_no_activation_is_gathered(self, kv_heads):
        analysis = analyse(*layers(repeated, kv_heads))
        found = large_collectives(analysis)
        of_keys = BATCH * LENGTH * kv_heads * HEAD_DIM
        assert found.pop(("all-reduce", HIDDEN)) == SUMS["all-reduce", HIDDEN]
        # Each group of devices sums over the queries of a head, then the heads come together.
        assert found == {("all-reduce", of_keys // kv_heads): 4, ("all-gather", of_keys): 4}

    @pytest.mark.parametrize(("attend", "kv_heads"), [(repeated, 2), pytest.param(grouped, 1, marks=pytest.mark.slow)])
    def test_the_numbers_are_the_same(self, attend, kv_heads):
        step, args = layers(attend, kv_heads)
        analysis = analyse(step, args)
        check_step(step, args, analysis, [by_heads(analysis)], mesh=mesh_of(x=8))

    @pytest.mark.slow
    def test_they_are_on_two_axes_too(self):
        step, args = layers(repeated, 2)
        analysis = analyse(step, args, {"data": 2, "model": 4})
        assignment = {block: ("rows", *names) for block, names in by_heads(analysis).items()}
        check_step(step, args, analysis, [assignment], mesh=mesh_of(data=2, model=4))

    def test_products_that_do_not_meet_are_not_left_whole_for_each_other(self):
        """Attention beside an MLP, whose hidden layer is wider: queries, keys and values are sharded all the same."""
        analysis = analyse(*PATTERNS["attention beside mlp"]())
        for block in analysis.blocks:
            assert all(one.out_dim is not None for one in block.choice("columns").partitions)


class TestQueriesInGroups:
    """Two heads of keys on more devices: only the queries of each can be shared out."""

    @pytest.mark.parametrize(("num_devices", "group"), [(4, 4), (8, 8)])
    def test_the_queries_of_each_head_are_sharded_and_keys_and_values_whole(self, num_devices, group):
        analysis = analyse(*layers_in_dims(2, group), {"x": num_devices})
        assert [len(block.contractions) for block in analysis.blocks] == [5, 1] * 2
        columns = analysis.blocks[0].choice("columns")
        assert columns.num_chunks == group
        assert [one.out_dim for one in columns.partitions] == [3, None, None]

    @pytest.mark.usefixtures("quick_compilation")
    def test_only_the_gradients_of_keys_and_values_are_summed(self):
        found = large_collectives(analyse(*layers_in_dims(2, 4), {"x": 4}))
        of_keys = BATCH * LENGTH * 2 * HEAD_DIM
        assert found == {**SUMS, ("all-reduce", of_keys): 4}

    def test_the_numbers_are_the_same(self):
        step, args = layers_in_dims(2, 4)
        analysis = analyse(step, args, {"x": 4})
        check_step(step, args, analysis, [by_heads(analysis)], mesh=mesh_of(x=4))

    @pytest.mark.parametrize(("attend_in", "num_devices"), [("reshape", 4), ("reshape", 8), ("dims", 8)])
    def test_heads_of_which_no_dim_has_enough_are_not_sharded(self, attend_in, num_devices):
        """Of a flat weight devices would have parts of both dims that it is reshaped to; 4 queries are few for 8."""
        made = layers(grouped, 2) if attend_in == "reshape" else layers_in_dims(2, 4)
        analysis = analyse(*made, {"x": num_devices})
        queries = analysis.blocks[0]
        assert [len(queries.seeds), len(queries.contractions)] == [1, 1]
        # The scores are in no block with the queries, so they are computed by rows or gathered.
        assert not any(len(block.seeds) > 1 for block in analysis.blocks)

    @pytest.mark.parametrize("attend_in", ["reshape", pytest.param("dims", marks=pytest.mark.slow)])
    def test_their_numbers_are_the_same_under_every_choice(self, attend_in):
        step, args = layers(grouped, 2) if attend_in == "reshape" else layers_in_dims(2, 4)
        analysis = analyse(step, args)
        choices = [{block.number: (name,) for block in analysis.blocks} for name in ("rows", "columns")]
        check_step(step, args, analysis, choices, mesh=mesh_of(x=8))


class TestTimeFirst:
    def test_of_the_outputs_of_a_loop_over_time_rows_are_the_batch(self):
        def loss(params, x):
            def cell(hidden, token):
                hidden = jnp.tanh(token @ params["in"] + hidden @ params["hidden"])
                return hidden, hidden

            _, x = jax.lax.scan(cell, jnp.zeros((8, 32)), x)
            return jnp.mean((x @ params["head"]) ** 2)

        args = weights(**{"in": (16, 32), "hidden": (32, 32), "head": (32, 16)}), inputs(24, 8, 16)
        analysis = analyse(sgd(loss), args)
        (block,) = analysis.blocks
        assert block.choice("rows").partitions[0].in_dims == (1, None)
        program = write_whole_step(StepPrograms(analysis), {0: ("rows",)})
        specs = dict(zip(analysis.step.arg_names, program.in_specs, strict=False))
        assert specs["argument 1"] == jax.P(None, "x")
