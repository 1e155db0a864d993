"""Actors on several hosts, which are Ray nodes on loopback: placement, a host that is lost, one clock for all."""

import json

import jax
import numpy as np
import pytest

import jaxquard as jq
from jaxquard.errors import ActorFailed, MeshError
from jaxquard.ir.timeline import Track
from jaxquard.report.timelines.perfetto import write_perfetto
from jaxquard.runtime.ray.controller import ray_run as clocks
from tests.machine_pace import machine_pace
from tests.pipeline.mlp_step import MlpStep
from tests.pipeline.oracle import assert_close, run_oracle
from tests.pipeline.planning import with_schedule
from tests.runtime.ray.cluster_hosts import three_hosts
from tests.runtime.ray.processes import client_processes
from tests.runtime.test_distributed import fetched, make_batch, make_weights, sgd_step

pytest.importorskip("ray")
pytestmark = pytest.mark.ray


def check_one_clock(timeline, tolerance_s=1e-3):
    """Transfers end after they start, and tasks start after what they take has arrived."""
    tasks = {(span.actor, span.name): span for span in timeline.spans if span.track is Track.COMPUTE}
    transfers = [span for span in timeline.spans if span.track is Track.TRANSFER]
    assert {"0F0", "1FB0", "0B0"} <= {name for _, name in tasks}
    assert transfers
    for span in timeline.spans:
        assert span.end_s >= span.start_s >= 0, span
    assert min(span.start_s for span in timeline.spans) == 0
    for microbatch in range(3):
        forward, backward = tasks[0, f"0F{microbatch}"], tasks[0, f"0B{microbatch}"]
        last = tasks[1, f"1FB{microbatch}"]
        assert forward.end_s <= last.start_s + tolerance_s
        assert last.end_s <= backward.start_s + tolerance_s


def test_timelines_on_one_clock(shared_meshes, monkeypatch):
    mesh = shared_meshes["narrow"]
    step = mesh.distributed(sgd_step, measure=True)
    weights, batch = make_weights(), make_batch()
    for _ in range(3):
        step(weights, batch)
        check_one_clock(step.timeline())
    # As if the actors were elsewhere: their clocks are compared by asking for the time.
    monkeypatch.setattr(clocks, "own_boot", lambda: "another boot")
    step(weights, batch)
    timeline = step.timeline()
    check_one_clock(timeline, tolerance_s=0.05 * max(1.0, machine_pace()))
    events = json.loads(write_perfetto(timeline))["traceEvents"]
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {"actor 0", "actor 1"}
    assert sum(event["ph"] == "X" for event in events) == len(timeline.spans)


def repeat(step, state, num_steps):
    for _ in range(num_steps):
        np.asarray(step(state)["x"])


@pytest.mark.slow
def test_a_host_is_lost(tmp_path):
    with three_hosts() as cluster:
        with jq.RemoteMesh(
            (4,), runtime="ray", address=cluster.address, platform="cpu", heartbeat_timeout_s=15
        ) as mesh:
            hosts = [workers[0].info.node_id for workers in mesh.engine.group.workers]
            assert len(set(hosts)) == 2
            step = mesh.distributed(lambda x: jax.tree.map(lambda leaf: leaf + 1, x))
            state = step({"x": np.zeros(3)})
            jq.save(tmp_path / "a", state).wait()
            lost = hosts[-1]
            node = next(node for node in cluster.worker_nodes if node.node_id == lost)
            actors = tuple(actor for actor, host in enumerate(hosts) if host == lost)
            cluster.remove_node(node, allow_graceful=False)
            with pytest.raises(ActorFailed) as caught:
                repeat(step, state, 3000)
            assert caught.value.is_lost
            assert caught.value.actor in actors
            restarted = mesh.restart()
            assert set(restarted) <= set(actors)
            assert caught.value.actor in restarted
            mesh.restart()
            moved = [workers[0].info.node_id for workers in mesh.engine.group.workers]
            assert lost not in moved
            state = jq.restore(tmp_path / "a", like=state)
            np.testing.assert_array_equal(step(state)["x"], np.full(3, 2.0))

            for node in tuple(cluster.worker_nodes):
                cluster.remove_node(node, allow_graceful=False)
            with pytest.raises(ActorFailed):
                repeat(step, state, 3000)
            with pytest.raises(MeshError, match=r"each on one host, but the Ray cluster has room for 0; free: "):
                mesh.restart()
            with pytest.raises(ActorFailed):
                step(state)
        assert not client_processes()


def test_actors_on_different_hosts(cluster):
    model = MlpStep(3, is_tied=True)
    state, batch = model.arguments(3)
    with jq.RemoteMesh((3,), runtime="ray", address=cluster.address, platform="cpu") as mesh:
        hosts = [workers[0].info.node_id for workers in mesh.engine.group.workers]
        assert len(set(hosts)) == 2
        found = mesh.distributed(with_schedule(model, jq.schedules.OneFOneB(3)))(state, batch)
        assert_close(fetched(found), run_oracle(model, state, batch))
