"""The layout of state between steps: moments, means of weights, and parts on two axes."""

import itertools

import jax
import pytest

from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.intraop.shardings.whole_step import write_whole_step
from jaxquard.pricing.program.lower_program import lower_program
from tests.intraop.patterns import PATTERNS
from tests.intraop.same_numbers import check_step
from tests.intraop.steps import analyse, mesh_of

pytestmark = pytest.mark.usefixtures("quick_compilation")

STORAGES = tuple(Storage)
AXES = {"data": 2, "model": 4}
WEIGHTS = "w1", "w2", "w3"


def specs_of(name, choice, storage, axes=None):
    """The program, and the sharding of every argument."""
    step, args = PATTERNS[name]()
    analysis = analyse(step, args, axes)
    program = write_whole_step(
        StepPrograms(analysis), {block.number: choice for block in analysis.blocks}, storage=storage
    )
    return program, dict(zip(analysis.graph.step.arg_names, program.in_specs, strict=False))


class TestMeansOfWeights:
    """State that is written and read by nothing but its own update."""

    @pytest.mark.parametrize(("storage", "choice"), list(itertools.product(STORAGES, ("rows", "columns"))))
    def test_they_are_kept_as_the_weights_or_sharded(self, storage, choice):
        specs = specs_of("mean of weights", (choice,), storage)[1]
        for name in WEIGHTS:
            weight, mean = (specs[f"argument 0['{group}']['{name}']"] for group in ("params", "mean"))
            if storage in (Storage.ZERO_1, Storage.ZERO_2) and choice == "rows":
                assert not any(weight)
                assert any(mean), "an optimizer's state is in parts"
            else:
                assert mean == weight

    @pytest.mark.parametrize("storage", STORAGES)
    def test_the_numbers_stay(self, storage):
        step, args = PATTERNS["mean of weights"]()
        analysis = analyse(step, args)
        plans = [{block.number: (choice,) for block in analysis.blocks} for choice in ("rows", "columns")]
        check_step(step, args, analysis, plans, mesh=mesh_of(x=8), storage=storage)


class TestPartsOnTwoAxes:
    @pytest.mark.parametrize("storage", [Storage.ZERO_1, Storage.ZERO_3])
    def test_the_axis_in_use_shards_first_in_the_update_too(self, storage):
        program = specs_of("mean of weights", ("rows", "columns"), storage, AXES)[0]
        found = {entry for spec in (*program.in_specs, *(spec for *_, spec in program.constraints)) for entry in spec}
        assert ("model", "data") in found
        assert ("data", "model") not in found

    @pytest.mark.parametrize("storage", [Storage.ZERO_1, Storage.ZERO_3])
    def test_nothing_is_permuted(self, storage):
        program = specs_of("mean of weights", ("rows", "columns"), storage, AXES)[0]
        text = lower_program(program, mesh=mesh_of(**AXES)).compile().as_text()
        assert "all-gather" in text
        plain = specs_of("mean of weights", ("rows", "columns"), Storage.AS_USED, AXES)[0]
        before = lower_program(plain, mesh=mesh_of(**AXES)).compile().as_text()
        assert text.count(" collective-permute(") <= before.count(" collective-permute(")
        assert text.count(" all-to-all(") <= before.count(" all-to-all(")


def test_a_key_in_the_state():
    step, args = PATTERNS["typed key in the state"]()
    analysis = analyse(step, args)
    assert jax.dtypes.issubdtype(args[0][1].dtype, jax.dtypes.prng_key)
    plans = [{block.number: (choice,) for block in analysis.blocks} for choice in ("rows", "columns")]
    check_step(step, args, analysis, plans, mesh=mesh_of(x=8))
