"""A model with its layers in a `lax.scan` is sharded as the one with its layers written one by one."""

import itertools
import re

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxquard.errors import ShardingError
from jaxquard.intraop.plan.search_sharding import search_sharding
from jaxquard.intraop.plan.sharded_step import CompiledStep
from jaxquard.intraop.segments.analysis_text import analysis_text
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.intraop.step.parts import LeafPart, stacked_specs
from jaxquard.pricing.program.fingerprint import Fingerprints
from tests.intraop.blocks.test_find_blocks import shape_of
from tests.intraop.fake_pricer import FakePricer
from tests.intraop.same_numbers import TOLERANCE, check_same, check_step
from tests.intraop.scanned_patterns import OPENED, microbatches, plain
from tests.intraop.scanned_zoo import scanned_step, scanned_types
from tests.intraop.step.test_open_scans import LOW_TOLERANCE
from tests.intraop.steps import ZOO, analyse, inputs, mesh_of, random_assignment, sgd, weights, zoo_types
from tests.slow_but_for import slow_but_for

pytestmark = pytest.mark.usefixtures("quick_compilation")


def both(name, *, num_layers=4, remat=False, optimizer="sgd", **changes):
    changes = {"num_layers": num_layers, **changes}
    unrolled = analyse(*zoo_types(name, remat=remat, optimizer=optimizer, **changes))
    return unrolled, analyse(*scanned_types(name, remat=remat, optimizer=optimizer, changes=changes))


def program_keys(analysis):
    """Of every segment, with the first choice for all blocks."""
    assignment = {block.number: (block.choices[0].name,) for block in analysis.blocks}
    prints = Fingerprints()
    return [prints.key(StepPrograms(analysis).write_segments([segment], assignment)) for segment in analysis.segments]


def rows(analysis):
    return {block.number: (block.choices[0].name,) * len(analysis.axes) for block in analysis.blocks}


class TestAnalysis:
    @pytest.mark.parametrize(
        ("name", "remat"),
        slow_but_for(itertools.product(ZOO, [False, True]), [("gpt-tiny", False), ("moe-tiny", True)]),
    )
    def test_blocks_kinds_and_choices_are_those_of_the_unrolled_model(self, name, remat):
        unrolled, scanned = both(name, remat=remat)
        assert shape_of(scanned) == shape_of(unrolled)
        assert len(scanned.owners) == len(unrolled.owners)

    @pytest.mark.parametrize("changes", [{"optimizer": "adam"}, {"dropout_rate": 0.1}, {"dtype": jnp.bfloat16}])
    def test_whatever_the_optimizer_dropout_and_precision(self, changes):
        unrolled, scanned = both("gpt-tiny", **changes)
        assert shape_of(scanned) == shape_of(unrolled)

    @pytest.mark.parametrize("options", [{"is_outer": True}, {"is_outer": True, "remat": True}])
    def test_also_with_a_checkpoint_around_the_scan(self, options):
        changes = {"num_layers": 4}
        found = analyse(*scanned_types("gpt-tiny", changes=changes, **options))
        assert shape_of(found) == shape_of(analyse(*zoo_types("gpt-tiny", **changes)))

    def test_what_is_shown_is_the_same_too(self):
        """But for the columns of a table, as a stacked parameter has no number of its layer in its path."""
        unrolled, scanned = (re.sub(r"\.\d+(?=[.,])|(?<=\S)  +", "", analysis_text(one)) for one in both("gpt-tiny"))
        assert scanned == unrolled

    def test_layers_have_one_program(self):
        """But for the first, which has the gradient of the positions, as in the unrolled model."""
        for keys in map(program_keys, both("gpt-tiny", optimizer="adam")):
            assert [keys.index(key) for key in keys] == [0, 1, 2, 2, 2, 5]

    def test_a_layer_owns_its_own_part_of_the_state(self):
        _, scanned = both("gpt-tiny", optimizer="adam")
        assignment = rows(scanned)
        for segment in scanned.segments[1:5]:
            program = StepPrograms(scanned).write_segments([segment], assignment)
            state = [program.jaxpr.in_avals[place].shape for place in program.donated]
            # Weights and means of the two products of an MLP, without the dim of the layers.
            assert state.count((64, 256)) == state.count((256, 64)) == 3

    def test_clipping_by_the_global_norm_changes_no_segments(self):
        clipped, unclipped = (analyse(*OPENED[name]()) for name in ("adam with clipping", "plain"))
        assert shape_of(clipped) == shape_of(unclipped)

    def test_a_loop_over_microbatches_hides_the_layers_and_is_refused(self):
        for is_scanned in (False, True):
            with pytest.raises(ShardingError, match=r"loop at scanned_patterns.py:\d+.* on one microbatch"):
                analyse(*microbatches(is_scanned=is_scanned))


class TestWhatIsPriced:
    def test_a_step_is_priced_as_it_runs_with_its_stacks(self):
        """The price of a whole step is that of the program that the plan runs, not of one on layers apart."""
        step, args = OPENED["plain"]()

        class Recorder(FakePricer):
            def price_all(self, programs, **more):
                for program in programs:
                    seen[program.name] = program
                return super().price_all(programs, **more)

        seen = {}
        plan = search_sharding(step, args, mesh=mesh_of(x=8), pricer=Recorder())
        analysis = analyse(step, args)
        whole = max(seen, key=lambda name: name.split(":")[0].count("and"))
        assert whole.split(":")[0].count("and") == len(analysis.segments) - 1
        stacked = [leaf.shape for leaf in jax.tree.leaves(args)]
        assert [aval.shape for aval in seen[whole].jaxpr.in_avals][: len(stacked)] == stacked
        applied = CompiledStep(analysis, dict(enumerate(plan.choices)), mesh=mesh_of(x=8)).program
        assert applied.in_specs == tuple(plan.specs.values())
        assert [aval.shape for aval in applied.jaxpr.in_avals] == stacked


class TestNumbers:
    def check(self, name, *, seeds, num_layers=2, dropout_rate=0.1, **options):
        changes = {"num_layers": num_layers, "dropout_rate": dropout_rate}
        made = scanned_step(name, changes=changes, **options)
        args = made.init_state(jax.random.key(0)), made.batch
        analysis = analyse(made.train_step, args)
        for seed in seeds:
            step = CompiledStep(analysis, random_assignment(analysis, seed), mesh=mesh_of(x=8), donate=False)
            (found, wanted), jitted = (args[0], args[0]), jax.jit(made.train_step)
            for _ in range(2):
                found, found_loss = step(found, made.batch)
                wanted, wanted_loss = jitted(wanted, made.batch)
                check_same((found, found_loss), (wanted, wanted_loss))

    def test_two_steps_of_a_mixed_strategy_give_the_plain_steps_numbers(self):
        # Dropout takes long to compile.
        self.check("gpt-tiny", seeds=[0], dropout_rate=0.0)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ZOO)
    @pytest.mark.parametrize("remat", [False, True])
    def test_so_do_more_of_every_model(self, name, remat):
        self.check(name, seeds=range(3), remat=remat, num_layers=4 if name == "moe-tiny" else 2)

    def test_so_does_one_with_clipping_and_adam(self):
        step, args = OPENED["adam with clipping"]()
        analysis = analyse(step, args)
        check_step(step, args, analysis, [random_assignment(analysis, 1)], mesh=mesh_of(x=8))

    @pytest.mark.slow
    @pytest.mark.parametrize("name", sorted(OPENED))
    def test_all_patterns_do_on_one_and_two_axes(self, name):
        step, args = OPENED[name]()
        tolerance = LOW_TOLERANCE if name == "cast" else TOLERANCE
        for axes in ({"x": 8}, {"data": 2, "model": 4}):
            analysis = analyse(step, args, axes)
            assignments = [random_assignment(analysis, seed) for seed in range(2)]
            check_step(step, args, analysis, assignments, mesh=mesh_of(**axes), tolerance=tolerance)

    @pytest.mark.slow
    def test_state_that_is_kept_sharded_does(self):
        step, args = OPENED["adam with clipping"]()
        analysis = analyse(step, args)
        for storage, seed in itertools.product((Storage.ZERO_1, Storage.ZERO_3), range(2)):
            assignments = [rows(analysis), random_assignment(analysis, seed)]
            check_step(step, args, analysis, assignments, mesh=mesh_of(x=8), storage=storage)


class TestPlan:
    @pytest.fixture
    def found(self):
        step, args = plain()
        return search_sharding(step, args, mesh=mesh_of(x=8), pricer=FakePricer())

    def test_a_stacked_leaf_is_named_once_and_not_sharded_along_its_layers(self, found):
        assert sorted(name for name in found.specs if name.startswith("argument 0")) == [
            "argument 0['bias']",
            "argument 0['down']",
            "argument 0['up']",
        ]
        assert found.specs["argument 0['up']"] == PartitionSpec(None, None, "x")

    def test_state_stays_stacked_placed_as_planned_and_is_donated(self, found):
        step, (params, batch) = plain()
        placed = found.shard(params)
        after, _ = found.apply(step)(placed, batch)
        for name, leaf in after.items():
            assert leaf.shape == params[name].shape
            assert leaf.sharding.is_equivalent_to(placed[name].sharding, leaf.ndim)
            assert placed[name].is_deleted()
        wanted = NamedSharding(mesh_of(x=8), PartitionSpec(None, None, "x"))
        assert after["up"].sharding.is_equivalent_to(wanted, 3)

    def test_a_leaf_is_kept_as_most_of_its_layers_want_it(self):
        parts = [LeafPart(leaf=0), *(LeafPart(leaf=1, index=(layer,)) for layer in range(3))]
        specs = [PartitionSpec("x"), PartitionSpec("x"), PartitionSpec(None, "x"), PartitionSpec(None, "x", None)]
        assert stacked_specs(parts, specs) == [PartitionSpec("x"), PartitionSpec(None, None, "x")]

    def test_parts_of_a_leaf_may_be_of_different_depth(self):
        parts = [LeafPart(leaf=0, index=index) for index in ((0, 0), (0, 1), (1,), (2,), (3,))]
        deep, flat = PartitionSpec(None, "x"), PartitionSpec(None, None, "x")
        assert stacked_specs(parts, [deep, deep, flat, flat, flat]) == [PartitionSpec(None, None, None, "x")]
        rows = PartitionSpec(None, "x")
        assert stacked_specs(parts, [deep, deep, rows, rows, rows]) == [PartitionSpec(None, None, "x")]

    def test_a_layer_that_is_a_stack_again_in_one_place(self):
        def loss(params, batch):
            x, targets = batch
            y, _ = jax.lax.scan(lambda x, w: (jnp.tanh(jnp.einsum("bd,kde->bke", x, w).mean(1)), None), x, params["w"])
            return jnp.mean((y - targets) ** 2) + 0.1 * jnp.sum(params["w"][0][0] ** 2)

        step, args = sgd(loss), (weights(w=(4, 3, 16, 16)), (inputs(16, 16), inputs(16, 16, seed=3)))
        analysis = analyse(step, args)
        assert {len(part.index) for part in analysis.graph.step.inputs if part.leaf == 0} == {1, 2}
        check_step(step, args, analysis, [random_assignment(analysis, seed) for seed in range(6)], mesh=mesh_of(x=8))

    def test_a_plan_for_other_layers_is_refused_by_the_stacked_leaf(self, found):
        step, args = plain(3)
        with pytest.raises(ShardingError, match=r"argument 0\['bias'\] was float32\[4,32\] and is float32\[3,32\]"):
            found.apply(step)(*args)
