"""The played time of a finalist, held against its program played with the same prices."""

import re
from collections.abc import Sequence

import jax
import optax
import pytest

import jaxquard as jq
from jaxquard.ir.program.instructions import Run
from jaxquard.planner.search import find_plan
from jaxquard.simulate.actor_link import link_actors
from jaxquard.simulate.play_program import play_program
from jaxquard.simulate.stage_cost import StageCost
from tests.planner.small_losses import mlp_args, mlp_loss

PARAMS, BATCH = mlp_args()
SHAPE = {"actors": 2, "data": 2, "microbatches": 4, "recompute": "none", "storage": "as used"}
CASES = [
    {"schedule": "1f1b", "stages": 2},
    {"schedule": "gpipe", "stages": 2},
    {"schedule": "zero-bubble-h1", "stages": 2},
    {"schedule": "interleaved", "stages": 4},
    pytest.param({"schedule": "1f1b", "stages": 2, "storage": "zero 1"}, marks=pytest.mark.slow),
    {"actors": 1, "data": 4},
]
_TASK = re.compile(r"(\d+)([FBIW]+)\d+")


def call_times_s(program, costs: Sequence[StageCost], actor_of: Sequence[int]) -> list[float]:
    """The seconds of each call: of a task those of its stage, of an update those of its actor's stages, else none."""
    runs = [
        (actor, one.call, str(one.task))
        for actor, listed in enumerate(program.actors)
        for one in listed.instructions
        if isinstance(one, Run)
    ]
    kinds = {found.groups() for *_, task in runs if (found := _TASK.fullmatch(task))}
    times_s = [0.0] * len(program.calls)
    for actor, call, task in runs:
        if task.startswith("after"):
            own = [cost for cost, of in zip(costs, actor_of, strict=True) if of == actor]
            times_s[call] = sum(cost.gradient_sum_s + cost.update_s for cost in own)
        elif found := _TASK.fullmatch(task):
            stage, kind = found[1], found[2]
            # A stage whose input has no gradient has one task for both parts of its backward.
            parts = "IW" if kind == "W" and (stage, "I") not in kinds and (stage, "FI") not in kinds else kind
            cost = costs[int(stage)]
            known = {"F": cost.forward_s, "B": cost.backward_s}
            known |= {"I": cost.input_gradient_s, "W": cost.weight_gradient_s}
            times_s[call] = sum(known[part] for part in parts)
    return times_s


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_finalist_plays_as_long_as_its_program(case, monkeypatch):
    chosen = []
    describe = find_plan._describe_choice
    monkeypatch.setattr(
        find_plan, "_describe_choice", lambda found, one, wishes: chosen.append(one) or describe(found, one, wishes)
    )
    given = {"devices": 4, "fix": {**SHAPE, **case}, "num_measured": 0}
    with jq.parallelize(mlp_loss, optax.sgd(0.1), (PARAMS, BATCH), **given) as run:
        program = run.distributed.lower(run.init(lambda: jax.tree.map(jax.numpy.asarray, PARAMS)), BATCH).program
    played = chosen[0].finalist.played
    costs = [stage.cost() for stage in played.stages]
    cluster = jq.cluster.load_cluster(run.plan.cluster)
    links = link_actors(cluster, num_actors=run.plan.num_actors, chips_apart=4 // run.plan.num_actors)
    found = play_program(program, call_times_s(program, costs, played.actor_of), links=links, axis_sizes=run.plan.axes)
    assert run.plan.time_s == played.time_s
    assert found.step_time_s == pytest.approx(played.time_s, rel=1e-9)
