"""Values that cross boundaries are resharded once at each, and priced so."""

import itertools
import math
import random
from collections import Counter

import pytest
from jax.sharding import PartitionSpec

from jaxquard.evaluate.cfp.run.sum_price import equation_7
from jaxquard.intraop.plan.segment_prices import make_chain, price_segments, reshard_times_s
from jaxquard.intraop.search.chain import search_chain
from jaxquard.intraop.shardings.boundaries import BoundaryRole, find_boundaries
from jaxquard.intraop.shardings.layouts import StepLayouts
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.pricing import Price
from jaxquard.pricing.program.lower_program import lower_program
from tests.intraop.blocks.test_no_communication import collectives
from tests.intraop.boundary_steps import decoder_layers, skip_net
from tests.intraop.fake_pricer import PROVENANCE
from tests.intraop.steps import LINE, analyse, mesh_of, zoo_types

WHOLE = PartitionSpec()


class RandomPricer:
    """A price for each program, drawn from its name."""

    def __init__(self):
        self.names = []

    def price_all(self, programs, *, groups=None, on_progress=None, end_s=math.inf):
        del groups, on_progress
        self.names += [program.name for program in programs]
        return [self._price(program.name) for program in programs]

    def _price(self, name):
        draw = random.Random(name)
        return Price(time_s=draw.random(), peak_bytes=draw.randrange(100), spread=None, provenance=PROVENANCE)


def alternate(analysis):
    """Segments sharded by rows, and segments sharded as Megatron does, which take and leave values replicated."""
    pair = ("columns",), ("contracted",)
    return {
        block: pair[place % 2] if segment.number % 2 else ("rows",)
        for segment in analysis.segments
        for place, block in enumerate(segment.blocks)
    }


def reshards(analysis, assignment):
    """All that is resharded at boundaries."""
    layouts = StepLayouts(analysis)
    for number, boundary in enumerate(find_boundaries(layouts)):
        segments = analysis.segments[number : number + 2]
        sides = zip((boundary.left, boundary.right), segments, strict=True)
        specs = [side.specs(layouts, [assignment[block] for block in segment.blocks]) for side, segment in sides]
        yield from boundary.reshards(*specs)


class TestProgram:
    @pytest.mark.parametrize(
        "make",
        [
            skip_net,
            pytest.param(lambda: zoo_types("gpt-tiny"), marks=pytest.mark.slow),
            pytest.param(lambda: zoo_types("moe-tiny"), marks=pytest.mark.slow),
        ],
    )
    def test_every_value_is_gathered_once_at_each_boundary_and_so_is_its_gradient(self, make, quick_compilation):
        """Between rows and whole only gathers move anything, and inside these segments there are only sums."""
        analysis = analyse(*make())
        assignment = alternate(analysis)
        expected = Counter()
        for aval, source, target in reshards(analysis, assignment):
            assert WHOLE in (source, target)
            if target == WHOLE:
                expected["all-gather", math.prod(aval.shape)] += 1
        assert expected.total() >= 3
        found = collectives(
            lower_program(StepPrograms(analysis).write_step(assignment), mesh=mesh_of(**LINE)).compile()
        )
        assert Counter({key: count for key, count in found.items() if key[0] != "all-reduce"}) == expected

    def test_a_value_is_copied_once_for_each_segment_on_its_way(self):
        analysis = analyse(*skip_net())
        program = StepPrograms(analysis).write_step(alternate(analysis))
        copies = sum(equation.primitive.name == "copy" for equation in program.jaxpr.jaxpr.eqns)
        ways = {
            (found.var, segment)
            for found in analysis.boundary_values.values()
            for end, _ in found.uses
            for segment in found.segments_to(end)
        }
        assert copies == len(ways)


class TestBoundaries:
    def test_a_skip_passes_through_the_segments_between(self):
        boundaries = find_boundaries(StepLayouts(analyse(*skip_net())))
        roles = Counter(role for boundary in boundaries for role, _ in (*boundary.left.roles, *boundary.right.roles))
        assert roles[BoundaryRole.PASSES] > 0
        assert max(len(boundary.avals) for boundary in boundaries) > 2

    @pytest.mark.parametrize("choice", ["rows", "columns"])
    def test_where_all_is_sharded_alike_nothing_is_resharded(self, choice):
        """Also what only passes is sharded as the segments are."""
        analysis = analyse(*skip_net())
        names = {"rows": ("rows", "rows"), "columns": ("columns", "contracted")}[choice]
        assignment = {
            block: (names[place],) for segment in analysis.segments for place, block in enumerate(segment.blocks)
        }
        assert list(reshards(analysis, assignment)) == []

    def test_equal_layers_have_one_boundary(self):
        boundaries = find_boundaries(StepLayouts(analyse(*zoo_types("gpt-tiny", num_layers=8))))
        assert len(boundaries) == 9
        assert len(set(boundaries)) == 3

    def test_so_have_layers_of_a_decoder_but_for_the_first_and_the_last(self):
        few, many = (set(find_boundaries(StepLayouts(analyse(*decoder_layers(count))))) for count in (5, 7))
        assert len(few) == len(many)


class TestPrices:
    @pytest.mark.parametrize(("name", "count"), [("gpt-tiny", 105), ("bert-tiny", 111)])
    def test_programs_are_as_many_at_any_depth_and_no_more_than_equation_7_gives(self, name, count):
        for num_layers in (2, 5):
            pricer = RandomPricer()
            analysis = analyse(*zoo_types(name, num_layers=num_layers))
            prices = price_segments(StepPrograms(analysis), pricer=pricer)
            assert prices.num_programs == count <= equation_7(analysis, batch_axis=None)
            assert len(pricer.names) == len(set(pricer.names)) <= count

    @pytest.mark.parametrize("make", [skip_net, lambda: zoo_types("moe-tiny", num_layers=1)])
    def test_the_sum_of_a_chain_is_that_of_its_segments_and_of_what_crosses(self, make):
        analysis = analyse(*make())
        prices = price_segments(StepPrograms(analysis), pricer=RandomPricer())
        chain = make_chain(prices)
        draw = random.Random(0)
        for _ in range(20):
            chosen = [draw.randrange(len(priced.times_s)) for priced in chain]
            strategies = [
                prices.kinds[segment.kind].strategies[choice]
                for segment, choice in zip(analysis.segments, chosen, strict=True)
            ]
            assignment = {
                block: names
                for segment, strategy in zip(analysis.segments, strategies, strict=True)
                for block, names in zip(segment.blocks, strategy, strict=True)
            }
            resharding = reshard_times_s(prices, assignment)
            assert resharding[0] == 0
            left = None
            for priced, choice, time_s in zip(chain, chosen, resharding, strict=True):
                if left is not None:
                    assert priced.reshards_s is not None
                    assert priced.reshards_s[left, priced.entries[choice]] == time_s
                left = priced.exits[choice]
            # The program that is priced is that of the values whose layouts differ.
            assert (sum(resharding) > 0) == bool(list(reshards(analysis, assignment)))

    def test_the_search_finds_the_minimum_of_all_sums(self):
        """Brute force over all strategies, added up from what the whole step reshards."""
        analysis = analyse(*skip_net(2))
        prices = price_segments(StepPrograms(analysis), pricer=RandomPricer())
        kinds = [prices.kinds[segment.kind] for segment in analysis.segments]
        best = math.inf
        for chosen in itertools.product(*(range(len(kind.strategies)) for kind in kinds)):
            time_s = sum(kind.prices[choice].time_s for kind, choice in zip(kinds, chosen, strict=True))
            if time_s < best:
                assignment = {}
                for segment, kind, choice in zip(analysis.segments, kinds, chosen, strict=True):
                    assignment |= dict(zip(segment.blocks, kind.strategies[choice], strict=True))
                best = min(best, time_s + sum(reshard_times_s(prices, assignment)))
        assert search_chain(make_chain(prices), memory_limit_bytes=None).best.time_s == pytest.approx(best)


class TestSharedState:
    """An embedding that is the head's weight too."""

    def test_a_segment_that_wants_another_layout_has_its_own_copy(self, quick_compilation):
        """Without it the compiler gathers the gradients of all logits for the head's input gradient."""
        analysis = analyse(*zoo_types("gpt-tiny", tied_embeddings=True))
        program = write_tied(analysis, first="columns", last="columns")
        assert num_table_copies(program) == 2, "one for the forward, one for the backward"
        found = collectives(lower_program(program, mesh=mesh_of(**LINE)).compile())
        assert not found["all-gather", 8 * 32 * 256]

    @pytest.mark.parametrize(("first", "last"), [("rows", "rows"), ("contracted", "columns")])
    def test_segments_that_agree_share_it(self, first, last):
        analysis = analyse(*zoo_types("gpt-tiny", tied_embeddings=True))
        assert num_table_copies(write_tied(analysis, first=first, last=last)) == 0


def write_tied(analysis, *, first, last):
    """The step with rows in all blocks but the embedding and the head."""
    rows = {block.number: ("rows",) for block in analysis.blocks}
    return StepPrograms(analysis).write_step({**rows, 0: (first,), len(rows) - 1: (last,)})


def num_table_copies(program):
    equations = program.jaxpr.jaxpr.eqns
    return sum(one.primitive.name == "copy" and one.invars[0].aval.shape == (256, 64) for one in equations)
