import threading

import jax
import numpy as np

from jaxquard.runtime.in_process.engine import guard_launches
from tests.runtime.build_program import make_meshes
from tests.runtime.in_process.test_engine import run_pipeline
from tests.runtime.mlp_pipeline import MlpPipeline


def test_launches_take_turns():
    under_way, most = 0, 0

    def executable(x):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        threading.Event().wait(0.002)
        under_way -= 1
        return [x]

    launch = guard_launches(executable, threading.Lock())
    x = jax.numpy.ones(2)
    threads = [threading.Thread(target=launch, args=(x,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_actors_that_share_several_devices_do_not_wait_for_each_other():
    """Each backward has a collective; side by side on two devices they would run out of threads."""
    pipeline = MlpPipeline(num_microbatches=8, axis="data")
    found = run_pipeline(pipeline, make_meshes(1, 2) * 4, num_steps=20)
    for one, other in zip(found, pipeline.expected(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
