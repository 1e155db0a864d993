"""The processes of actors, without Ray: export, import, steps and messages between them.

Also on an accelerator, on which several processes share a device: run with JAX_PLATFORMS=cuda.
"""

import jax
import numpy as np
import pytest

from jaxquard.ir.array_type import ArrayType
from jaxquard.ir.program import ActorProgram, Input, Output, Program, Recv, Send
from tests.runtime.mlp_pipeline import MlpPipeline
from tests.runtime.ray.actor_processes import ActorProcesses

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def processes():
    with ActorProcesses(2, platform=jax.default_backend()) as processes:
        yield processes


def test_a_pipeline_gives_what_a_plain_loop_gives(processes):
    pipeline = MlpPipeline(num_stages=2, num_microbatches=4)
    program, values = pipeline.program(), pipeline.values()
    number = processes.load(program)
    for _ in range(3):
        inputs = [[values[item.arg] for item in actor.inputs] for actor in program.actors]
        outcomes = processes.run(number, program, inputs)
        found = {}
        for actor, (reply, cells) in enumerate(outcomes):
            assert reply.is_complete
            slots = list(dict.fromkeys(output.slot for output in program.actors[actor].outputs))
            for output in program.actors[actor].outputs:
                found[output.result] = processes.fetch(actor, cells[slots.index(output.slot)])
        for result, expected in enumerate(pipeline.expected()):
            np.testing.assert_allclose(found[result], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_64_megabytes_to_and_fro(processes, record_property):
    """Measures the bandwidth: from the dispatch of the send to the arrival, by the one clock of both processes."""
    type_ = ArrayType(dtype="float32", shape=(16 * 2**20,))
    program = Program(
        calls=(),
        actors=(
            ActorProgram(
                types=(type_, type_),
                inputs=(Input(slot=0, arg=0),),
                instructions=(Send(slots=(0,), target=1), Recv(slots=(1,), source=1)),
                outputs=(Output(slot=1, result=0),),
            ),
            ActorProgram(types=(type_,), instructions=(Recv(slots=(0,), source=0), Send(slots=(0,), target=0))),
        ),
    )
    number = processes.load(program)
    value = np.random.default_rng(0).normal(size=type_.shape).astype(np.float32)
    for _ in range(4):
        (reply, cells), (other, _) = processes.run(number, program, [[value], []], measure=True)
        start_s, end_s = reply.clock.dispatches[0], reply.clock.arrivals[1][0]
        record_property("bandwidth_bytes_per_s", 2 * value.nbytes / (end_s - start_s))
    assert reply.is_complete
    assert other.is_complete
    np.testing.assert_array_equal(processes.fetch(0, cells[0]), value)
