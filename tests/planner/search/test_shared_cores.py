"""Cores that the actors of a host share, beside tasks that divide the cores up as they go."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxquard.planner.search.find_plan import find_plan
from jaxquard.planner.search.measured_host import MeasuredHost, open_measured_host
from jaxquard.planner.search.plan_options import PlanOptions
from jaxquard.planner.search.price_tasks import price_tasks
from jaxquard.planner.search.problem import loss_problem
from jaxquard.planner.search.shared_cores import find_shared_time
from jaxquard.planner.search.targets import find_plan_target
from jaxquard.pricing import Failure, FailureReason, MeasuredPricer, Price, Provenance
from jaxquard.simulate.pipeline_playback import PipelinePlayback

FAKE = Provenance(pricer="fake", jax_version="", platform="", device_kind="", num_devices=0, date="", num_runs=0)


@st.composite
def task_graphs(draw):
    """Tasks as (actor, seconds, tasks that it waits for), in an order in which they can run."""
    num_actors = draw(st.integers(1, 4))
    tasks = []
    for number in range(draw(st.integers(1, 12))):
        waits = draw(st.sets(st.integers(0, number - 1), max_size=2)) if number else set()
        tasks.append((draw(st.integers(0, num_actors - 1)), draw(st.integers(1, 9)), waits))
    return num_actors, tasks


def play(num_actors, tasks):
    """Plays tasks that take their seconds whatever else runs."""
    free_s, ends_s, actors = [0.0] * num_actors, [], [[] for _ in range(num_actors)]
    for actor, time_s, waits in tasks:
        start_s = max([free_s[actor], *(ends_s[wait] for wait in waits)])
        free_s[actor] = start_s + time_s
        ends_s.append(free_s[actor])
        actors[actor].append((start_s, free_s[actor]))
    spans = np.array([span for of_actor in actors for span in of_actor])
    return PipelinePlayback(
        bounds=tuple(np.cumsum([0, *map(len, actors)])),
        starts_s=spans[:, 0],
        ends_s=spans[:, 1],
        task_name=str,
        outside=(),
        step_time_s=max(ends_s),
        find_transfers=lambda: None,
        find_memory=lambda: (),
    )


def share(num_actors, tasks, *, actor_devices, num_cores):
    """Returns when the last task ends: the devices of those that run divide the cores up, from one end to the next."""
    work = [time_s * min(1.0, num_cores / (num_actors * actor_devices)) for _, time_s, _ in tasks]
    left, now_s = dict(enumerate(work)), 0.0
    while left:
        running = []
        for actor in range(num_actors):
            first = next((one for one in left if tasks[one][0] == actor), None)
            if first is not None and not tasks[first][2] & left.keys():
                running.append(first)
        speed = min(1.0, num_cores / (len(running) * actor_devices))
        took_s = min(left[one] for one in running) / speed
        now_s += took_s
        for one in running:
            left[one] -= took_s * speed
            if left[one] < 1e-9:
                del left[one]
    return now_s


@given(graph=task_graphs(), actor_devices=st.integers(1, 4), num_cores=st.integers(1, 20))
def test_tasks_that_divide_the_cores_up_end_then(graph, actor_devices, num_cores):
    """A task that takes a second on all actors takes a share of it on one that runs alone."""
    num_actors, _ = graph
    alone_share = share(num_actors, [(0, 1.0, set())], actor_devices=actor_devices, num_cores=num_cores)
    found_s = find_shared_time(play(*graph), alone_share=alone_share)
    assert found_s == pytest.approx(share(*graph, actor_devices=actor_devices, num_cores=num_cores))


@pytest.mark.parametrize(("alone_share", "time_s"), [(0.5, 3.0), (0.75, 4.5), (1.0, 6.0)])
def test_bubbles_are_as_fast_as_an_actor_alone(alone_share, time_s):
    played = play(2, [(0, 3.0, set()), (1, 3.0, {0})])
    assert played.step_time_s == 6.0
    assert find_shared_time(played, alone_share=alone_share) == time_s


@pytest.mark.parametrize(
    ("devices", "runtime", "found"),
    [(8, "in_process", (True, True)), (64, "in_process", (True, False)), (8, "ray", (False, False))],
    ids=["devices of this process", "more than are here", "processes"],
)
def test_who_shares_the_cores(devices, runtime, found):
    assert len(jax.devices()) == 8
    with open_measured_host(find_plan_target(cluster=None, devices=devices, runtime=runtime), cache=None) as host:
        assert (host is not None, host is not None and host.pricer_alone is not None) == found


def test_an_actor_alone_is_measured_on_its_devices():
    """And on all meshes of a shape by the same pricer."""
    with open_measured_host(find_plan_target(cluster=None, devices=8, runtime="in_process"), cache=None) as host:
        mesh = jax.sharding.AbstractMesh((2, 2), ("data", "model"))
        pricer = host.pricer_alone(mesh)
        assert isinstance(pricer, MeasuredPricer)
        assert pricer.mesh.shape == {"data": 2, "model": 2}
        assert host.pricer_alone(mesh) is pricer


class PricerOf:
    """Tasks take so many seconds, those of the loop twice as many; or none can run."""

    def __init__(self, time_s):
        self.time_s = time_s
        self.asked = []

    def price_all(self, programs, *, groups=None, on_progress=None):
        self.asked += [one.name for one in programs]
        if self.time_s is None:
            return [Failure(name=one.name, reason=FailureReason.NO_RUN, message="") for one in programs]
        times_s = [self.time_s * (2 if one.name.startswith("stage") else 1) for one in programs]
        return [Price(time_s=time_s, peak_bytes=0, spread=None, provenance=FAKE) for time_s in times_s]


def plan_of(stages):
    def loss(params, batch):
        for weight in params:
            batch = jnp.tanh(batch @ weight)
        return jnp.mean(batch)

    params = [jax.ShapeDtypeStruct((4, 4), jnp.float32)] * 4
    problem, _ = loss_problem(loss, optax.adam(0.1), (params, jax.ShapeDtypeStruct((8, 4), jnp.float32)))
    target = find_plan_target(cluster="cpu-4", devices=None, runtime="in_process")
    fix = {"stages": stages, "microbatches": 4 if stages > 1 else 1}
    return problem, find_plan(problem, target, PlanOptions(num_measured=0, cache=None, fix=fix))


@pytest.mark.parametrize("stages", [1, 2])
def test_a_price_of_whole_tasks_has_it(stages):
    """Where there are several actors."""
    problem, plan = plan_of(stages)
    free = Price(time_s=0.0, peak_bytes=0, spread=None, provenance=FAKE)

    def price(pricer_alone):
        host = MeasuredHost(
            price_overhead=lambda problem, applied: free,
            pricer_alone=None if pricer_alone is None else lambda mesh: pricer_alone,
        )
        return price_tasks(problem, plan, PricerOf(1.0), links={}, host=host).time_s

    half = PricerOf(0.5)
    without, with_half = price(None), price(half)
    assert price(PricerOf(1.0)) == pytest.approx(without)
    assert price(PricerOf(None)) == pytest.approx(without)
    if stages == 1:
        assert with_half == without
        assert not half.asked
    else:
        assert 0.5 * without < with_half < without
        # One task of the loop, which runs most.
        assert len(half.asked) == 1
        assert half.asked[0].startswith("stage")
