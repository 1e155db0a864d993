"""Queries, keys and values of one weight are sharded by heads, and the state keeps the user's order."""

import math

import jax
import numpy as np
import pytest

from jaxquard.intraop.plan.sharded_step import CompiledStep
from jaxquard.intraop.plan.volume import volumes_bytes
from jaxquard.intraop.shardings.baselines import baselines
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.intraop.shardings.whole_step import write_whole_step
from jaxquard.pricing.program.lower_program import lower_program
from tests.intraop.blocks.test_no_communication import collectives
from tests.intraop.compiled_bytes import compiled_bytes
from tests.intraop.fused_steps import WAYS, fused_step
from tests.intraop.same_numbers import check_same, check_step
from tests.intraop.steps import analyse, mesh_of

BATCH, LENGTH, DIM = 8, 4, 64


def megatron(analysis):
    return baselines(analysis)["megatron"].assignment


def compiled(analysis, assignment, *, storage=Storage.AS_USED):
    program = write_whole_step(StepPrograms(analysis), assignment, storage=storage)
    return lower_program(program, mesh=mesh_of(**analysis.axes)).compile()


@pytest.mark.usefixtures("quick_compilation")
class TestCommunication:
    @pytest.mark.parametrize("way", ["split", *(pytest.param(w, marks=pytest.mark.slow) for w in WAYS if w != "split")])
    def test_of_tensor_parallelism_is_megatrons_and_an_exchange_of_each_fused_weight(self, way):
        analysis = analyse(*fused_step(way, num_layers=2))
        assert megatron(analysis) == dict(enumerate([("columns",), ("contracted",)] * 4))
        found = collectives(compiled(analysis, megatron(analysis)))
        # An all-to-all has a result for each device, with a part of the weight: forward, and the gradient back.
        exchanged = {key: count for key, count in found.items() if key[0] == "all-to-all"}
        assert exchanged == {("all-to-all", DIM * 3 * DIM // 64): 2 * 2 * 8}
        summed = {key: count for key, count in found.items() if key[0] == "all-reduce" and key[1] > 1}
        # Two of the forward of each layer, and of the backward but of the step's own input.
        assert summed == {("all-reduce", BATCH * LENGTH * DIM): 4 + 3}
        # The gradient of the bias, which is small and stored whole.
        gathered = {key: count for key, count in found.items() if key not in exchanged | summed and key[1] > 1}
        assert set(gathered) <= {("all-gather", 3 * DIM)}

    @pytest.mark.slow
    @pytest.mark.parametrize("num_devices", [2, 4])
    def test_on_fewer_devices_too(self, num_devices):
        analysis = analyse(*fused_step(num_layers=1), {"x": num_devices})
        found = collectives(compiled(analysis, megatron(analysis)))
        assert {name for name, size in found if size > 3 * DIM} == {"all-to-all", "all-reduce"}

    def test_by_the_symbolic_rules_is_that_of_the_compiled_program(self):
        analysis = analyse(*fused_step(num_layers=1, bias=False))
        # The loss is one number more.
        sent = compiled_bytes(compiled(analysis, megatron(analysis)).as_text())
        (found,) = volumes_bytes(StepPrograms(analysis), [megatron(analysis)])
        assert found == pytest.approx(sent, abs=16)


def test_the_weight_and_its_momentum_are_stored_along_rows():
    analysis = analyse(*fused_step(num_layers=1))
    program = write_whole_step(StepPrograms(analysis), megatron(analysis))
    specs = dict(zip(analysis.step.arg_names, program.in_specs, strict=False))
    fused = {name: spec for name, spec in specs.items() if name.endswith("['qkv']")}
    assert set(fused.values()) == {jax.P("x")}
    assert len(fused) == 2


@pytest.mark.parametrize("storage", [Storage.ZERO_1, Storage.ZERO_3])
def test_zero_shards_the_weight_along_a_dim_that_the_product_has_too(storage):
    """Of the columns of all three it could scatter no gradient."""
    analysis = analyse(*fused_step(num_layers=1))
    rows = {block.number: ("rows",) for block in analysis.blocks}
    program = write_whole_step(StepPrograms(analysis), rows, storage=storage)
    specs = dict(zip(analysis.step.arg_names, program.in_specs, strict=False))
    assert specs["argument 0[1][0]['qkv']"] == jax.P("x")


class TestSameNumbers:
    @pytest.mark.slow
    @pytest.mark.parametrize("storage", list(Storage))
    @pytest.mark.parametrize("axes", [{"x": 8}, {"data": 2, "model": 4}])
    def test_however_state_is_stored_and_on_two_axes(self, axes, storage):
        for options in ({}, {"way": "transposed", "halves": True}, {"remat": True}):
            step, args = fused_step(**options)
            analysis = analyse(step, args, axes)
            rows = {block.number: ("rows",) * len(axes) for block in analysis.blocks}
            assignments = [rows, megatron(analysis)]
            check_step(step, args, analysis, assignments, mesh=mesh_of(**axes), storage=storage)

    def test_state_goes_from_the_plan_to_the_plain_step_and_back(self):
        """As a checkpoint would take it: gathered as arrays of the host, in the order in which the user made it."""
        step, (state, data) = fused_step(num_layers=1)
        analysis, plain = analyse(step, (state, data)), jax.jit(step)
        sharded = CompiledStep(analysis, megatron(analysis), mesh=mesh_of(x=8), donate=False)
        wanted = [state]
        for _ in range(3):
            wanted.append(plain(wanted[-1], data)[0])
        saved, _ = sharded(state, data)
        for leaf in jax.tree.leaves(saved):
            if leaf.ndim > 1:
                assert math.prod(leaf.addressable_shards[0].data.shape) * 8 == leaf.size
        saved = jax.tree.map(np.asarray, saved)
        check_same(saved, wanted[1])
        resumed, _ = plain(saved, data)
        check_same(resumed, wanted[2])
        again, _ = sharded(jax.tree.map(np.asarray, resumed), data)
        check_same(again, wanted[3])
