"""The ranking of configurations against the search that plays them, and against every assignment."""

from hypothesis import given
from hypothesis import strategies as st

from jaxquard.planner.record.plan import Recompute
from jaxquard.planner.stages.assign import assign_segments
from jaxquard.planner.stages.configurations.alternatives import PART_VALUES
from jaxquard.planner.stages.configurations.search import LaterAlternatives, rank_configurations, search_configurations
from jaxquard.planner.stages.configurations.space import PlanSpace, list_configurations
from jaxquard.planner.stages.segment_costs import count_state_bytes
from tests.planner.stages.generate_chains import chains, equal_layers, layer

SPACE = list_configurations(
    PlanSpace(
        num_devices=4,
        global_batch=8,
        num_segments=4,
        schedules=("1f1b", "interleaved"),
        max_chunks=2,
        recomputes=(Recompute.NONE,),
        storages=("as used",),
    )
)


def estimated_s(configuration, chain, limit):
    """The estimate of the best assignment; infinite if none fits."""
    found = assign_segments(chain, configuration.shape, memory_limit_bytes=limit)
    return found[0].time_s if found else float("inf")


@given(st.lists(chains(), min_size=1, max_size=3), st.integers(5, 120))
def test_what_surely_exceeds_the_limit_has_no_costs_and_nothing_else_is_left_out(drawn, limit):
    keys = dict.fromkeys(one.priced_as for one in SPACE)
    known = {key: drawn[place % len(drawn)] for place, key in enumerate(keys)}
    asked = []

    def costs(configuration):
        asked.append(configuration)
        return known[configuration.priced_as]

    def smallest_bytes(configuration):
        return count_state_bytes(known[configuration.priced_as]) / configuration.num_actors

    found = rank_configurations(SPACE, costs, smallest_bytes=smallest_bytes, memory_limit_bytes=limit)
    times_s = {one: estimated_s(one, known[one.priced_as], limit) for one in SPACE}
    best_s = min(times_s.values())
    assert bool(found.configurations) == (best_s < float("inf"))
    for one in SPACE:
        # By every choice of stages and strategies.
        assert smallest_bytes(one) <= limit or times_s[one] == float("inf")
    if found.configurations:
        assert all(smallest_bytes(one) <= limit for one in asked)
        assert times_s[found.configurations[0]] <= best_s * 1.003 + 1e-12


def chain_of(configuration):
    """Costs that only some meshes have room for."""
    scale = configuration.microbatch_size / dict(configuration.axes).get("model", 1)
    return equal_layers(8, layer(time_s=0.1 + scale, activation_bytes=3, weight_bytes=2))


def test_the_best_are_those_that_play_the_fastest():
    options = {"memory_limit_bytes": 60, "num_finalists": 4}
    families = {"two actors": lambda one: one.num_actors == 2, "none": lambda one: False}
    played = search_configurations(SPACE, chain_of, families=families, **options)
    ranked = rank_configurations(SPACE, chain_of, families=families, **options)
    assert {one.configuration for one in played.finalists} <= {*ranked.configurations}
    assert ranked.families == {
        name: None if one is None else one.configuration for name, one in played.families.items()
    }
    assert ranked.log.num_simulated == 0
    best = played.best.configuration
    late = ranked.find_alternatives(best, (), 0.0)
    assert (late.found, late.num_simulated) == ((), 0)
    (note,) = late.missing
    assert all(part in note for part in PART_VALUES)
    later = ranked.find_alternatives(best, (), None)
    assert (later.found, later.missing) == (played.alternatives, ())
    assert later.num_simulated >= len(ranked.configurations)
    parts = [one.part for one in played.alternatives]
    assert parts
    assert ranked.find_alternatives(best, parts, None).found == ()
    assert ranked.find_alternatives(best, tuple(PART_VALUES), None) == LaterAlternatives()
    other = next(one for one in SPACE if one != best)
    assert ranked.find_alternatives(other, (), None).found == ()


def test_nothing_that_fits_is_ranked_where_nothing_fits():
    ranked = rank_configurations(SPACE, chain_of, memory_limit_bytes=1)
    assert ranked.configurations == ()
    assert ranked.smallest.memory_bytes == min(
        search_configurations([one], chain_of, memory_limit_bytes=1).smallest.memory_bytes
        for one in SPACE
        if one.num_actors == ranked.smallest.configuration.num_actors
    )
