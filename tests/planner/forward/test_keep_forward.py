"""The forward of a planned step: what is kept, and the order in which it runs."""

import jax
import optax
import pytest

import jaxquard as jq
from jaxquard.planner.forward.keep_forward import keep_forward, order_forward
from jaxquard.planner.search.problem import loss_problem
from jaxquard.planner.step.apply_plan import apply_plan
from tests.planner.small_losses import mlp_args, mlp_loss


def test_gradients_and_the_optimizers_state_are_left_out():
    args, optimizer = mlp_args(), optax.adam(0.1)
    fix = {"stages": 2, "schedule": "zero-bubble-h1", "microbatches": 4, "recompute": "full"}
    plan = jq.parallelize(mlp_loss, optimizer, args, devices=2, fix=fix, num_measured=0).plan
    problem, _ = loss_problem(mlp_loss, optimizer, args)
    state, batch = problem.args
    kept = keep_forward(apply_plan(problem.step, problem.args, plan), problem.args, lambda results: results[1]["loss"])
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(state)]
    assert {paths[leaf][0].key for leaf in kept.leaves} == {"params"}
    assert len(kept.leaves) == len(jax.tree.leaves(state["params"]))
    with jq.RemoteMesh((2,)) as mesh:
        step = mesh.distributed(kept.fn, in_shardings=kept.in_shardings)
        text = str(step.program(kept.take(state), batch))
    tasks = [line.split(" = ")[1].split()[0] for line in text.splitlines() if line.startswith("  run ")]
    assert [task for task in tasks if task[0].isdigit()] == [f"{stage}F{one}" for stage in range(2) for one in range(4)]


@pytest.mark.parametrize("actors", [[0], [0, 1], [0, 1, 0, 1], [0, 1, 1, 0]])
@pytest.mark.parametrize("num_microbatches", [1, 3, 4])
def test_forwards_of_any_placement_can_run(actors, num_microbatches):
    schedule = order_forward(actors, max(actors) + 1, num_microbatches)
    rows = schedule.rows(num_microbatches)
    jq.schedules.check_rows(rows, num_stages=len(actors), num_microbatches=num_microbatches)


def test_an_actor_with_several_stages_waits_at_the_start_alone():
    first, second = order_forward([0, 1, 0, 1], 2, 4).rows(4)
    assert " ".join(map(str, first)) == "0F0 0F1 2F0 2F1 0F2 0F3 2F2 2F3"
    assert " ".join(map(str, second)) == "1F0 1F1 3F0 3F1 1F2 1F3 3F2 3F3"
