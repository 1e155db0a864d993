"""The search over configurations against pricing, assigning and playing every one of them."""

import time
from dataclasses import replace

import pytest

from benchmarks.plan_search import SyntheticModel
from jaxquard.planner.record.plan import Recompute
from jaxquard.planner.stages.assign import assign_segments
from jaxquard.planner.stages.configurations.configuration_search import ConfigurationSearch
from jaxquard.planner.stages.configurations.search import search_configurations
from jaxquard.planner.stages.configurations.space import PlanSpace, list_configurations
from jaxquard.planner.stages.play_assignment import play_assignment
from jaxquard.simulate import ActorLink
from tests.planner.stages.generate_chains import equal_layers, layer

MODEL = SyntheticModel(num_layers=8, hidden=2048, seq=512, vocab=8192)
SPACE = list_configurations(
    PlanSpace(
        num_devices=8,
        global_batch=32,
        num_segments=10,
        schedules=("1f1b", "interleaved", "zero-bubble-h1"),
        max_chunks=2,
        recomputes=(Recompute.NONE, Recompute.FULL),
        storages=("as used", "zero 1"),
    )
)
LINK = ActorLink(latency_s=1e-5, bandwidth_bytes_per_s=1e10)
LINKS = {pair: LINK for actor in range(8) for pair in ((actor, actor + 1), (actor + 1, actor))}
CHAINS = {one.priced_as: MODEL.chain(one) for one in SPACE}


def search(limit, **options):
    return search_configurations(
        SPACE,
        lambda one: CHAINS[one.priced_as],
        bound=lambda one: MODEL.bound_s(one, 8),
        memory_limit_bytes=limit,
        links=lambda one: LINKS,
        **options,
    )


def play_all(limit):
    """Every configuration: its played time and memory, of those that fit."""
    found = {}
    for one in SPACE:
        chain = CHAINS[one.priced_as]
        for assignment in assign_segments(chain, one.shape, memory_limit_bytes=limit, links=LINKS):
            played = play_assignment(chain, one.shape, assignment, links=LINKS)
            if limit is None or max(played.peak_bytes) <= limit:
                found[one] = played.time_s
    return found


def test_what_plays_faster_than_its_estimate_is_taken(monkeypatch):
    """A search whose estimates name a slow configuration moves to neighbours that play faster."""
    wanted = search(None).best
    slow = next(
        one
        for one in SPACE
        if one.num_microbatches == wanted.configuration.num_microbatches
        and (one.axes, one.num_actors) == (wanted.configuration.axes, wanted.configuration.num_actors)
        and (one.recompute, one.storage) == (Recompute.FULL, wanted.configuration.storage)
    )

    def find(self, space, num_finalists, *_, **__):
        return (self.play(slow),)

    monkeypatch.setattr(ConfigurationSearch, "find", find)
    found = search(None)
    assert found.best.configuration.recompute is Recompute.NONE
    assert found.best.time_s < play_one(slow)
    assert all(one.added_s >= 0 for one in found.alternatives if one.deciding != "memory")


def play_one(one):
    (assignment,) = assign_segments(CHAINS[one.priced_as], one.shape, links=LINKS)
    return play_assignment(CHAINS[one.priced_as], one.shape, assignment, links=LINKS).time_s


@pytest.mark.thin(3)
@pytest.mark.parametrize("limit", [None, 2_000_000_000, 1_200_000_000])
def test_the_fastest_of_all_is_found(limit):
    known = play_all(limit)
    found = search(limit)
    assert found.best.time_s <= min(known.values()) * (1 + 1e-9)
    times_s = [finalist.time_s for finalist in found.finalists]
    assert times_s == sorted(times_s)
    assert 1 <= len(times_s) == len({finalist.configuration for finalist in found.finalists}) <= 5
    assert all(limit is None or finalist.memory_bytes <= limit for finalist in found.finalists)
    log = found.log
    assert log.num_seen == len(SPACE)
    assert 0 < log.num_priced < log.num_seen
    assert log.num_pruned + log.num_priced == log.num_seen
    assert log.num_unpriced == 0
    assert log.num_simulated >= 1
    assert log.left_out == ()


def test_alternatives_cost_what_they_play():
    limit = 1_200_000_000
    found = search(limit)
    best = found.best
    assert {one.part for one in found.alternatives} >= {"microbatches", "recompute"}
    for one in found.alternatives:
        assert one.chosen != one.alternative
        assert one.deciding == "memory" if one.added_s < 0 else one.deciding != "memory"
        if one.added_s < 0:
            assert best.memory_bytes + one.added_bytes > limit
    one = next(one for one in found.alternatives if one.part == "microbatches" and one.added_s >= 0)
    (other,) = [
        configuration
        for configuration in SPACE
        if configuration.num_microbatches == int(one.alternative)
        and all(
            getattr(configuration, name) == getattr(best.configuration, name)
            for name in ("num_actors", "num_stages", "axes", "schedule", "recompute", "storage")
        )
    ]
    chain = CHAINS[other.priced_as]
    times_s = [
        play_assignment(chain, other.shape, each, links=LINKS).time_s
        for each in assign_segments(chain, other.shape, memory_limit_bytes=limit, links=LINKS)
    ]
    assert one.added_s + best.time_s == pytest.approx(min(times_s), rel=0.01)


def test_the_same_plan_on_a_mesh_of_other_axes_is_no_alternative():
    """Where all axes shard rows, their names make no difference."""
    times_s = {(("data", 4),): 3.0, (("model", 4),): 3.0, (("data", 2), ("model", 2)): 4.5}
    space = [replace(SPACE[0], num_actors=1, num_stages=1, schedule="none", axes=axes) for axes in times_s]
    found = search_configurations(space, lambda one: equal_layers(2, layer(time_s=times_s[one.axes])))
    (mesh,) = (one for one in found.alternatives if one.part == "mesh")
    assert (mesh.alternative, mesh.added_s > 0) == ("data 2 x model 2", True)


def test_each_family_has_its_fastest():
    found = search(
        None,
        families={
            "data parallel": lambda one: one.mesh["data"] == 8,
            "no pipeline": lambda one: one.num_actors == 1,
            "none": lambda one: one.num_actors == 3,
        },
    )
    assert found.families["data parallel"].configuration.mesh == {"data": 8, "model": 1}
    assert found.families["no pipeline"].time_s <= found.families["data parallel"].time_s
    assert found.families["none"] is None
    assert found.best.time_s <= found.families["no pipeline"].time_s


def test_nothing_fits():
    found = search(1_000_000)
    assert found.best is None
    assert found.finalists == ()
    smallest = found.smallest
    assert smallest.memory_bytes > 1_000_000
    assert smallest.played.memory.largest_term in ("weights", "gradients", "optimizer", "activations", "working")
    assert search(smallest.memory_bytes, num_finalists=1).best is not None
    assert smallest.configuration in SPACE


def test_a_time_budget_says_what_it_left_out():
    chain = equal_layers(10, layer())
    families = {"2 actors": lambda one: one.num_actors == 2}
    found = search_configurations(SPACE, lambda one: chain, time_budget_s=0.0, num_finalists=1, families=families)
    assert found.best is not None
    text, families, alternatives = found.log.left_out
    assert text.startswith("the time budget left out ")
    assert "configurations; by their bounds none of them is more than" in text
    assert families == "the time budget ended among the best of 2 actors"
    assert found.families == {"2 actors": None}
    assert alternatives.startswith("the time budget left out alternatives to schedule, stages, ")
    assert found.log.num_pruned + found.log.num_priced < found.log.num_seen
    assert found.log.num_pruned + found.log.num_priced + found.log.num_unpriced == found.log.num_seen


def test_configurations_without_costs_are_left_out():
    found = search_configurations(
        SPACE, lambda one: CHAINS[one.priced_as] if one.num_actors == 2 else (), num_finalists=1
    )
    assert found.best.configuration.num_actors == 2
    log = found.log
    assert log.num_unpriced > 0
    assert log.num_pruned + log.num_priced + log.num_unpriced == log.num_seen


def test_progress_is_reported():
    seen = []
    search(None, num_finalists=1, on_progress=lambda done, total, name: seen.append((done, total, name)))
    assert all(0 <= done <= total == len(SPACE) for done, total, _ in seen)
    assert any("playing" in name for _, _, name in seen)


@pytest.mark.slow
def test_a_hundred_layers_on_64_devices_take_seconds():
    model = SyntheticModel()
    space = list_configurations(
        PlanSpace(num_devices=64, global_batch=512, num_segments=98, devices_per_host=8, max_microbatch_size=8)
    )
    chains = {one.priced_as: model.chain(one) for one in space}
    started_s = time.process_time()
    found = search_configurations(
        space,
        lambda one: chains[one.priced_as],
        bound=lambda one: model.bound_s(one, 64),
        memory_limit_bytes=80 * 10**9,
    )
    assert found.best is not None
    assert time.process_time() - started_s < 60
