"""A cluster that was joined goes away: a typed error in bounded time, and the program lives."""

import time

import jax
import pytest

import jaxquard as jq
from jaxquard.errors import ActorFailed, MeshError
from tests.runtime.ray import spinning_step
from tests.runtime.ray.cluster_hosts import three_hosts

pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.mark.parametrize("server", ["raylet", "gcs_server"])
def test_a_joined_cluster_that_is_gone(server):
    with three_hosts() as cluster:
        head = cluster.head_node
        with jq.RemoteMesh((2,), runtime="ray", address=cluster.address, platform="cpu") as mesh:
            step = mesh.distributed(spinning_step.train_step, donate_argnums=0)
            _, loss = step(mesh.init(spinning_step.init, jax.random.key(0)), spinning_step.batch(), 10_000_000)
            (found,) = head.all_processes[server]
            found.process.kill()
            start_s = time.monotonic()
            with pytest.raises(ActorFailed, match=r"is lost with all others, as the (raylet|control server)"):
                float(loss)
            assert time.monotonic() - start_s < 50
            if server == "raylet":  # The cluster has other hosts, and is joined again through one of them.
                assert mesh.restart() == (0, 1)
                assert float(step(mesh.init(spinning_step.init, jax.random.key(0)), spinning_step.batch(), 0)[1]) > 0
            else:
                with pytest.raises(MeshError, match=r"^No Ray cluster could be reached at .*: connection refused"):
                    mesh.restart()
