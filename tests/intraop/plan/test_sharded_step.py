"""The sharded step computes what the plain step does."""

import itertools

import jax
import pytest

from jaxquard.intraop.segments.strategies import block_choices
from jaxquard.intraop.shardings.baselines import baselines
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.intraop.shardings.whole_step import write_whole_step
from tests.intraop.patterns import PATTERNS
from tests.intraop.same_numbers import TOLERANCE, check_step
from tests.intraop.steps import ZOO, analyse, mesh_of, names_of, random_assignment, zoo_step
from tests.slow_but_for import slow_but_for

pytestmark = pytest.mark.usefixtures("quick_compilation")

# A bfloat16 has 8 bits: one rounding is 2**-8, and what is summed is rounded in another order.
LOW_TOLERANCE = 4 * 2**-8


def tolerance_of(pattern):
    return LOW_TOLERANCE if pattern == "mixed precision" else TOLERANCE


class TestZoo:
    @pytest.mark.parametrize(("seed", "name"), slow_but_for(enumerate(ZOO), [(0, "gpt-tiny"), (3, "moe-tiny")]))
    def test_a_mixed_strategy_gives_the_same_numbers(self, name, seed):
        # Masks must not depend on how they are sharded; they take long to compile, so one model has them here.
        step, args = zoo_step(name, num_layers=1, dropout_rate=0.1 if name == "gpt-tiny" else 0.0)
        analysis = analyse(step, args)
        check_step(step, args, analysis, [random_assignment(analysis, seed)], mesh=mesh_of(x=8))

    def test_sequence_parallelism_does(self):
        step, args = zoo_step("gpt-tiny", num_layers=1)
        analysis = analyse(step, args)
        found = baselines(analysis)["megatron, sequence parallel"].assignment
        assert ("scattered",) in found.values()
        check_step(step, args, analysis, [found], mesh=mesh_of(x=8))

    @pytest.mark.slow
    @pytest.mark.parametrize("axes", [{"x": 8}, {"data": 2, "model": 4}], ids=["8", "2x4"])
    @pytest.mark.parametrize("name", ZOO)
    def test_every_baseline_does(self, name, axes):
        step, args = zoo_step(name, num_layers=1, dropout_rate=0.1)
        analysis = analyse(step, args, axes)
        for found in baselines(analysis).values():
            check_step(step, args, analysis, [found.assignment], mesh=mesh_of(**axes), storage=found.storage)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ZOO)
    def test_more_mixed_strategies_of_two_layers_and_a_checkpoint_do(self, name):
        for remat in (False, True):
            step, args = zoo_step(name, dropout_rate=0.1, remat=remat)
            analysis = analyse(step, args)
            check_step(
                step, args, analysis, [random_assignment(analysis, seed) for seed in range(6)], mesh=mesh_of(x=8)
            )

    @pytest.mark.slow
    @pytest.mark.parametrize("part", range(9))
    @pytest.mark.parametrize("name", ZOO)
    def test_every_strategy_of_a_layer_does(self, name, part):
        """All combinations of the layer's four blocks, a ninth at a time; embedding and head take theirs in turn."""
        step, args = zoo_step(name, num_layers=1)
        analysis = analyse(step, args)
        blocks = [block_choices(block, analysis.axes, batch_axis=None) for block in analysis.blocks]
        layer = list(itertools.product(*blocks[1:5]))
        assert len(layer) == (144 if name == "moe-tiny" else 81)
        around = itertools.cycle(itertools.product(blocks[0], *blocks[5:]))
        assignments = [
            dict(enumerate([first, *inner, *rest])) for inner, (first, *rest) in zip(layer, around, strict=False)
        ]
        check_step(step, args, analysis, assignments[part::9], mesh=mesh_of(x=8))


class TestMeshes:
    def test_two_axes_give_the_same_numbers(self):
        step, args = zoo_step("gpt-tiny", num_layers=1)
        analysis = analyse(step, args, {"data": 2, "model": 4})
        assignments = [random_assignment(analysis, 0)]
        check_step(step, args, analysis, assignments, mesh=mesh_of(data=2, model=4))

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ZOO)
    @pytest.mark.parametrize("sizes", [(2, 4), (4, 2)])
    def test_rows_on_the_outer_axis_and_every_combination_do(self, name, sizes):
        axes = dict(zip(("data", "model"), sizes, strict=True))
        step, args = zoo_step(name, num_layers=1)
        analysis = analyse(step, args, axes)
        outer = [random_assignment(analysis, seed, batch_axis="data") for seed in range(3)]
        every = [random_assignment(analysis, seed) for seed in range(6)]
        check_step(step, args, analysis, outer + every, mesh=mesh_of(**axes))

    def test_on_the_batch_axis_every_block_is_sharded_by_rows(self):
        step, args = zoo_step("gpt-tiny", num_layers=1)
        analysis = analyse(step, args, {"data": 2, "model": 4})
        for block in analysis.blocks:
            outer = {names[0] for names in block_choices(block, analysis.axes, batch_axis="data")}
            inner = {names[1] for names in block_choices(block, analysis.axes, batch_axis="data")}
            assert outer == {"rows"}
            assert inner == set(block.names)

    def test_axes_that_shard_the_same_dim_divide_it_together(self):
        step, args = zoo_step("gpt-tiny", num_layers=1, batch_size=4)
        analysis = analyse(step, args, {"data": 2, "model": 4})
        found = [block_choices(block, analysis.axes, batch_axis=None) for block in analysis.blocks]
        # The batch of 4 is shared by one axis at most, but here the sequence of 32 stands in for it where it can.
        for block, choices in zip(analysis.blocks, found, strict=True):
            assert (("rows", "rows") in choices) == (block.choice("rows").num_chunks % 8 == 0)


class TestStorage:
    @pytest.mark.parametrize("storage", [Storage.ZERO_1, Storage.ZERO_3])
    def test_sharded_state_gives_the_same_numbers(self, storage):
        step, args = zoo_step("gpt-tiny", num_layers=1)
        analysis = analyse(step, args)
        rows = {block.number: ("rows",) for block in analysis.blocks}
        check_step(step, args, analysis, [rows], mesh=mesh_of(x=8), storage=storage)

    def test_what_one_axis_shards_the_other_shards_further(self):
        step, args = PATTERNS["mlp"]()
        analysis = analyse(step, args, {"data": 2, "model": 4})
        assignment = {block.number: ("rows", "columns") for block in analysis.blocks}
        check_step(step, args, analysis, [assignment], mesh=mesh_of(data=2, model=4), storage=Storage.ZERO_3)
        program = write_whole_step(StepPrograms(analysis), assignment, storage=Storage.ZERO_3)
        specs = dict(zip(analysis.graph.step.arg_names, program.in_specs, strict=False))
        weights = [spec for name, spec in specs.items() if "'w" in name]
        assert weights
        for spec in weights:
            axes = [axis for entry in spec for axis in (entry if isinstance(entry, tuple) else (entry,)) if axis]
            assert sorted(axes) == ["data", "model"]
            assert ("data", "model") not in spec, "the part in use would lie on devices far apart"

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ZOO)
    def test_in_every_model_with_mixed_strategies_on_two_axes_too(self, name):
        step, args = zoo_step(name, num_layers=1)
        for axes, storage in itertools.product(({"x": 8}, {"data": 2, "model": 4}), (Storage.ZERO_1, Storage.ZERO_3)):
            analysis = analyse(step, args, axes)
            rows = {block.number: ("rows",) * len(axes) for block in analysis.blocks}
            assignments = [rows, random_assignment(analysis, 1)]
            check_step(step, args, analysis, assignments, mesh=mesh_of(**axes), storage=storage)


class TestWhatElseUsersWrite:
    # Each of these once went wrong, or has a form that no model of the zoo has.
    FAST = (
        "queries, keys, values in thirds",
        "convolutions",
        "swapped operands",
        "weights used twice",
        "frozen weights",
    )

    @pytest.mark.parametrize("name", FAST)
    def test_a_mixed_strategy_gives_the_same_numbers(self, name):
        step, args = PATTERNS[name]()
        analysis = analyse(step, args)
        check_step(step, args, analysis, [random_assignment(analysis, 0)], mesh=mesh_of(x=8))

    @pytest.mark.slow
    @pytest.mark.parametrize("name", sorted(PATTERNS))
    def test_more_strategies_on_one_and_two_axes_do(self, name):
        step, args = PATTERNS[name]()
        for axes in ({"x": 8}, {"data": 2, "model": 4}):
            analysis = analyse(step, args, axes)
            assignments = [random_assignment(analysis, seed) for seed in range(3)]
            check_step(step, args, analysis, assignments, mesh=mesh_of(**axes), tolerance=tolerance_of(name))

    @pytest.mark.slow
    def test_optax_does(self):
        optax = pytest.importorskip("optax")
        plain, (params, batch) = PATTERNS["mlp"]()
        del plain
        # The larger epsilon keeps Adam from making much of the rounding of gradients that are almost 0.
        optimizer = optax.adamw(1e-2, eps=1e-2)

        def loss(params, batch):
            x, targets = batch
            hidden = jax.nn.relu(x @ params["w1"] + params["b1"])
            return ((hidden @ params["w2"] @ params["w3"] - targets) ** 2).mean()

        def step(state, batch):
            params, moments = state
            value, grads = jax.value_and_grad(loss)(params, batch)
            updates, moments = optimizer.update(grads, moments, params)
            return (optax.apply_updates(params, updates), moments), value

        args = ((params, optimizer.init(params)), batch)
        analysis = analyse(step, args)
        assert names_of(analysis) == [("rows", "columns", "contracted")] * 3
        assignments = [random_assignment(analysis, seed) for seed in range(3)]
        check_step(step, args, analysis, assignments, mesh=mesh_of(x=8))
