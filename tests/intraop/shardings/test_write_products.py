"""Blocks as 2D products compute what the plain step does, and move what MeshSlice moves."""

import functools
import random
from collections import Counter
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from jaxquard.cluster import load_cluster
from jaxquard.gemm.problem import LayerPlan, ProductRole, Stationary
from jaxquard.intraop.plan.sharded_step import CompiledStep
from jaxquard.intraop.segments.analysis import analyse_step
from jaxquard.intraop.segments.strategies import block_choices
from jaxquard.intraop.segments.tune_products import tune_products
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.intraop.shardings.write_products import find_products
from jaxquard.intraop.step.traced_step import trace_step
from tests.intraop.blocks.test_two_dimensional import AXES, LAYERS, layer_step
from tests.intraop.patterns import PATTERNS
from tests.intraop.same_numbers import check_step
from tests.intraop.steps import ZOO, mesh_of, sgd, zoo_step
from tests.slow_but_for import slow_but_for

pytestmark = pytest.mark.usefixtures("quick_compilation")

PRODUCT = ("2d rows", "2d columns")


def analyse(step, args, axes=AXES, *, slices=None, split=False, batch_axis=None):
    """The analysis with all 2D products there can be, by the tuner or with given slices."""

    def plan(blocks):
        found = tune_products(blocks, axes=axes, cluster=load_cluster("v5e"), batch_axis=batch_axis)
        if slices is None:
            return found
        layer = LayerPlan(name="layer", stationary=Stationary.Y, slices=slices, block=1, split_for_overlap=split)
        return {number: (layer,) * len(plans) for number, plans in found.items()}

    return analyse_step(trace_step(step, args), axes=axes, plan_products=plan)


def random_assignment(analysis, seed, *, batch_axis=None):
    draw = random.Random(seed)
    return {
        block.number: draw.choice(
            block_choices(block, analysis.axes, batch_axis=batch_axis, has_product=block.number in analysis.products)
        )
        for block in analysis.blocks
    }


def all_products(analysis, names=PRODUCT):
    return {
        block.number: names if block.number in analysis.products else ("rows", "columns") for block in analysis.blocks
    }


@pytest.mark.parametrize("name", slow_but_for(LAYERS, ["sequence", "heads swapped", "w on the left"]))
@pytest.mark.parametrize("axes", [AXES, {"data": 4, "model": 2}], ids=["2x4", "4x2"])
def test_a_layer_gives_the_same_numbers(name, axes):
    step, args = layer_step(name)
    analysis = analyse(step, args, axes, slices=(2, 2, 2))
    assert len(analysis.products) == 1
    check_step(step, args, analysis, [all_products(analysis)], mesh=mesh_of(**axes))


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(("slices", "split"), [((1, 2, 4), False), ((2, 2, 2), True), ((1, 1, 1), False)])
def test_any_slices_do(name, slices, split):
    step, args = layer_step(name)
    analysis = analyse(step, args, slices=slices, split=split)
    check_step(step, args, analysis, [all_products(analysis)], mesh=mesh_of(**AXES))


@pytest.mark.parametrize("name", slow_but_for(ZOO, ["llama-tiny"]))
@pytest.mark.parametrize("remat", [pytest.param(False, marks=pytest.mark.slow), True], ids=["saved", "recomputed"])
def test_models_give_the_same_numbers(name, remat):
    step, args = zoo_step(name, num_layers=1, remat=remat)
    analysis = analyse(step, args, slices=(2, 2, 2))
    storage = Storage.ZERO_3 if remat else Storage.AS_USED
    check_step(step, args, analysis, [all_products(analysis)], mesh=mesh_of(**AXES), storage=storage)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", ZOO)
def test_products_beside_other_strategies_do(name, seed):
    step, args = zoo_step(name, num_layers=1)
    analysis = analyse(step, args)
    assignments = [random_assignment(analysis, seed), random_assignment(analysis, seed, batch_axis="data")]
    check_step(step, args, analysis, assignments, mesh=mesh_of(**AXES))


def test_rows_are_sharded_over_the_batch_axis_wherever_it_stands():
    step, args = PATTERNS["mlp"]()
    analysis = analyse(step, args, slices=(1, 1, 1), batch_axis="model")
    names = ("2d columns", "2d rows")
    assert names in block_choices(analysis.blocks[0], AXES, batch_axis="model", has_product=True)
    check_step(step, args, analysis, [all_products(analysis, names)], mesh=mesh_of(**AXES))


def test_mixed_precision_keeps_the_types():
    step, args = PATTERNS["mixed precision"]()
    analysis = analyse(step, args)
    assert analysis.products
    check_step(step, args, analysis, [all_products(analysis)], mesh=mesh_of(**AXES), tolerance=4 * 2**-8)


class TestProgram:
    def test_every_product_of_a_block_is_written_so(self):
        step, args = zoo_step("llama-tiny", num_layers=1)
        analysis = analyse(step, args)
        found = find_products(analysis, all_products(analysis))
        num_seeds = sum(len(plans) for plans in analysis.products.values())
        assert [product.role for product in found.values()].count(ProductRole.FORWARD) == num_seeds
        assert len(found) == 3 * num_seeds

    def test_a_weight_is_sharded_over_all_devices_and_moves_in_slices(self):
        step, args = PATTERNS["mlp"]()
        analysis = analyse(step, args, slices=(2, 2, 2))
        compiled = CompiledStep(analysis, all_products(analysis), mesh=mesh_of(**AXES), donate=False)
        text = str(compiled.program.jaxpr)
        roles = Counter(product.role for product in find_products(analysis, all_products(analysis)).values())
        forward, data, weight = (roles[role] for role in ProductRole)
        # The input of the step has no gradient.
        assert (forward, data, weight) == (3, 2, 3)
        # Of two slices each: OS gathers two matrices, LS and RS gather one and scatter the sums of another.
        assert text.count("shard_map[") == forward + data + weight
        assert text.count("all_gather[") == 2 * (2 * forward + data + weight)
        assert text.count("reduce_scatter[") == 2 * (data + weight)
        specs = dict(zip(analysis.step.arg_names, compiled.program.in_specs, strict=False))
        assert {tuple(spec) for name, spec in specs.items() if "'w" in name} == {("data", "model")}

    def test_strategies_with_the_same_products_share_a_jaxpr(self):
        step, args = PATTERNS["mlp"]()
        analysis = analyse(step, args)
        programs = StepPrograms(analysis)
        others = {block.number: ("rows", "rows") for block in analysis.blocks}
        first, second = ({**others, 0: PRODUCT}, {**others, 0: PRODUCT, 1: ("rows", "columns")})
        jaxprs = [programs.write_step(assignment).jaxpr for assignment in (first, second, others)]
        assert jaxprs[0] is jaxprs[1]
        assert jaxprs[0] is not jaxprs[2]


class TestTuner:
    def test_large_layers_have_the_tuners_slices(self):
        step, args = _wide_step()
        found = analyse(step, args).products
        assert found
        assert all(max(layer.slices) > 1 for plans in found.values() for layer in plans)

    @pytest.mark.parametrize("axes", [{"x": 8}, {"data": 1, "model": 8}])
    def test_there_are_none_without_two_axes(self, axes):
        step, args = PATTERNS["mlp"]()
        assert not analyse(step, args, axes).products

    def test_there_are_none_without_a_cluster(self):
        step, args = PATTERNS["mlp"]()
        analysis = analyse_step(
            trace_step(step, args), axes=AXES, plan_products=functools.partial(tune_products, axes=AXES, cluster=None)
        )
        assert not analysis.products

    def test_a_layer_that_the_mesh_does_not_divide_has_none(self):
        """Rows, columns and sums must each be divided by both axes together with the block of a slice."""
        step, args = PATTERNS["mlp"]()
        blocks = analyse(step, args).blocks
        narrow = [
            replace(block, product_choices=tuple(replace(c, num_chunks=3) for c in block.product_choices))
            for block in blocks
        ]
        assert not tune_products(narrow, axes=AXES, cluster=load_cluster("v5e"))


def _wide_step():
    """Layers of GPT-3's sizes, as shapes alone."""

    def loss(params, batch):
        return jnp.mean(jnp.square(jax.nn.gelu(batch @ params["up"]) @ params["down"]))

    shape = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
    params = {"up": shape((12288, 49152)), "down": shape((49152, 12288))}
    return sgd(loss), (params, shape((16384, 12288)))
