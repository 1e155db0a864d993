"""Steps that are unusual and legal: they are analysed, and compute what `jax.jit` of them computes."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jaxquard.intraop.blocks.unplanned_matmuls import unplanned_matmuls
from tests.intraop.same_numbers import check_step
from tests.intraop.steps import analyse, inputs, mesh_of, names_of, random_assignment, sgd, weights

pytestmark = pytest.mark.usefixtures("quick_compilation")

TABLE = np.linspace(0.5, 1.5, 64, dtype=np.float32)
MLP = weights(w=(32, 64), v=(64, 32))


def check(step, args, *, num_strategies=2):
    """Under a few strategies; returns the analysis."""
    analysis = analyse(step, args)
    strategies = [random_assignment(analysis, seed) for seed in range(num_strategies)]
    check_step(step, args, analysis, strategies, mesh=mesh_of(x=8))
    return analysis


def test_a_jit_in_a_checkpoint_that_closes_over_an_array():
    scaled = jax.jit(lambda x: jnp.tanh(x * TABLE))

    def loss(params, x):
        layer = jax.checkpoint(lambda x: scaled(x @ params["w"]) @ params["v"])
        return jnp.mean(layer(layer(x)) ** 2)

    check(sgd(loss), (MLP, inputs(16, 32)))


def test_a_checkpoint_in_a_jit_in_a_scan_does():
    scaled = jax.jit(lambda x: jnp.tanh(x * TABLE))
    stacked = {"w": inputs(3, 64, 64) / 8}

    def loss(params, x):
        layer = jax.checkpoint(lambda x, w: (scaled(x @ w), None))
        return jnp.mean(lax.scan(layer, x, params["w"])[0] ** 2)

    check(sgd(loss), (stacked, inputs(16, 64)))


def test_printing_in_a_checkpoint():
    def loss(params, x):
        def layer(x):
            hidden = x @ params["w"]
            jax.debug.print("seen {}", hidden.shape[0])
            return jnp.tanh(hidden) @ params["v"]

        return jnp.mean(jax.checkpoint(layer)(x) ** 2)

    analysis = analyse(sgd(loss), (MLP, inputs(16, 32)))
    assert names_of(analysis) == [("rows", "columns", "contracted")] * 2
    owned = zip(analysis.owners, analysis.graph.equations, strict=True)
    printing = [owner for owner, equation in owned if equation.primitive.name == "debug_print"]
    assert printing
    assert set(printing) == {0}, "it prints the rows of the first product"


def test_a_scanned_model_whose_flag_comes_back_as_a_number():
    def step(state, x):
        def loss(params):
            return jnp.mean(lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, params["w"])[0] ** 2)

        grads = jax.grad(loss)(state["params"])
        params = jax.tree.map(lambda leaf, grad: leaf - 0.1 * grad, state["params"], grads)
        return {"params": params, "is_new": np.bool_(False), "count": np.int32(0)}, jnp.float32(0)

    state = {"params": {"w": inputs(3, 64, 64) / 8}, "is_new": np.bool_(True), "count": np.int32(3)}
    analysis = analyse(step, (state, inputs(16, 64)))
    assert len(analysis.blocks) == 3


def test_a_product_with_a_number():
    check(sgd(lambda params, x: jnp.mean(jnp.dot(jnp.tanh(x @ params["w"]), 0.5) ** 2)), (MLP, inputs(16, 32)))


@pytest.mark.parametrize("sizes", [(32, 100, 256, 256), (32, 100, 64, 64)])
@pytest.mark.parametrize("batch_size", [64, 6])
def test_a_product_that_does_not_divide_takes_no_others_into_its_block(sizes, batch_size):
    """On 8 devices the first can be sharded by its rows, or its sum, alone; the others have choices of their own."""
    params = weights(**{f"w{n}": shape for n, shape in enumerate(itertools.pairwise(sizes))})

    def loss(params, x):
        for weight in params.values():
            x = jnp.tanh(x @ weight)
        return jnp.mean(x**2)

    analysis = analyse(sgd(loss), (params, inputs(batch_size, sizes[0])))
    rows = ("rows",) if batch_size % 8 == 0 else ()
    assert names_of(analysis) == [(*rows, "contracted"), (*rows, "columns"), (*rows, "columns", "contracted")]


def test_products_of_one_input_that_do_not_divide_alike_keep_their_own_partitions():
    def loss(params, x):
        return jnp.mean((jax.nn.gelu(x @ params["up"]) @ params["down"] + x @ params["skip"]) ** 2)

    args = weights(up=(64, 256), down=(256, 100), skip=(64, 100)), inputs(16, 64)
    assert names_of(analyse(sgd(loss), args)) == [
        ("rows", "columns", "contracted"),
        ("rows", "contracted"),
        ("rows", "contracted"),
    ]


def test_products_of_one_input_with_no_partition_in_common():
    def loss(params, x):
        first = jnp.einsum("bsd,de->bse", x, params["features"])
        second = jnp.einsum("bsd,st->btd", x, params["places"])
        return jnp.mean(first**2) + jnp.mean(second**2)

    args = weights(features=(12, 10), places=(16, 10)), inputs(6, 16, 12)
    assert names_of(analyse(sgd(loss), args)) == [("rows",), ("contracted",)]


def test_a_step_that_was_jitted_with_shardings():
    plain = sgd(lambda params, x: jnp.mean((jnp.tanh(x @ params["w"]) @ params["v"]) ** 2))
    args = MLP, inputs(16, 32)
    mesh = mesh_of(x=8)
    whole, rows = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("x"))
    jitted = jax.jit(plain, in_shardings=(whole, rows), out_shardings=whole)
    assert names_of(analyse(jitted, args)) == names_of(analyse(plain, args))
    check(jitted, args)


def test_products_by_ragged_groups_in_batches_are_named():
    def loss(params, x):
        groups = jnp.full((2, 4), 2, jnp.int32)
        experts = jnp.broadcast_to(params["experts"], (2, 4, 64, 64))
        rows = (x @ params["w"]).reshape(2, 8, 64)
        return jnp.mean(jax.vmap(lax.ragged_dot)(rows, experts, groups) ** 2)

    args = weights(w=(32, 64), experts=(4, 64, 64)), inputs(16, 32)
    (note,) = unplanned_matmuls(analyse(sgd(loss), args).graph.equations)
    assert "not planned: `ragged_dot_general` at test_odd_steps.py" in note
    check(sgd(loss), args)


def test_products_by_ragged_groups_are_planned():
    def loss(params, x):
        groups = jnp.full(4, 4, jnp.int32)
        return jnp.mean(lax.ragged_dot(x @ params["w"], params["experts"], groups) ** 2)

    args = weights(w=(32, 64), experts=(4, 64, 64)), inputs(16, 32)
    analysis = analyse(sgd(loss), args)
    assert unplanned_matmuls(analysis.graph.equations) == ()
    assert names_of(analysis)[-1] == ("rows", "columns", "contracted", "scattered columns")


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg", "threefry2x32"])
def test_keys_of_any_kind_draw_the_same_numbers(impl):
    """Keys of other kinds draw all numbers of an array of keys from the first."""
    stacked = {"w": inputs(3, 64, 64) / 8}

    def loss(params, x):
        keys = jax.random.split(jax.random.key(7, impl=impl), 3)
        masks = jax.vmap(lambda key: jax.random.bernoulli(key, 0.8, (16, 64)))(keys)

        def layer(x, parts):
            weight, mask = parts
            return jnp.tanh(jnp.where(mask, x @ weight, 0.0)), None

        return jnp.mean(lax.scan(layer, x, (params["w"], masks))[0] ** 2)

    check(sgd(loss), (stacked, inputs(16, 64)))


def test_strides_make_other_segments():
    """Four convolutions of the same weights and inputs, the last of which leaves every other pixel out."""

    def loss(params, x):
        for name, weight in params.items():
            stride = 2 if name == "w3" else 1
            dims = ("NHWC", "HWIO", "NHWC")
            x = jax.nn.relu(lax.conv_general_dilated(x, weight, (stride, stride), "SAME", dimension_numbers=dims))
        return jnp.mean(x**2)

    params = {f"w{number}": inputs(3, 3, 16, 16, seed=number) / 12 for number in range(5)}
    analysis = analyse(sgd(loss), (params, inputs(8, 8, 8, 16)))
    kinds = [segment.kind for segment in analysis.segments for _ in segment.blocks]
    assert len(kinds) == 5
    assert kinds[3] not in (kinds[1], kinds[2])


def test_kernels_of_grouped_convolutions_make_other_segments():
    sizes = dict(zip("abcdefgh", (3, 3, 3, 3, 9, 9, 9, 9), strict=True))

    def loss(params, x):
        for name in sizes:
            x = jnp.tanh(x @ params["w" + name])
            dims = ("NWC", "WIO", "NWC")
            x = lax.conv_general_dilated(
                x, params["k" + name], (1,), "SAME", dimension_numbers=dims, feature_group_count=32
            )
        return jnp.mean(x**2)

    params = weights(**{"w" + name: (32, 32) for name in sizes})
    params |= {"k" + name: inputs(size, 1, 32) for name, size in sizes.items()}
    analysis = analyse(sgd(loss), (params, inputs(8, 16, 32)))
    kinds = [segment.kind for segment in analysis.segments for _ in segment.blocks]
    assert len(kinds) == len(sizes)
    assert set(kinds[:4]).isdisjoint(kinds[4:])


def test_dims_of_dependence_make_other_segments():
    """Pairs of equal products; in the first the second takes columns of what comes before, as in figure 6."""

    def loss(params, x):
        for number in range(6):
            x = jnp.tanh(x @ params[f"w{number}"])
            if number == 0:
                x = x.T
        return jnp.mean(x**2)

    params = {f"w{number}": inputs(64, 64, seed=number) / 8 for number in range(6)}
    analysis = analyse(sgd(loss), (params, inputs(64, 64)))
    kinds = [segment.kind for segment in analysis.segments for _ in segment.blocks]
    assert len(kinds) == 6
    assert kinds[1] not in kinds[2:]
    assert kinds[2] == kinds[4]
