"""Programs as data for another process: what travels, for a platform that is not here."""

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from jaxquard.pricing.mock_gpu.program_request import RequestInput, lower_request
from jaxquard.pricing.values.make_values import ANY
from tests.pricing.programs import array, make

MESH = AbstractMesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def test_a_program_for_gpus_without_one():
    program = make(jnp.matmul, array(64, 32), array(32, 16), ins=(P("x", "y"), P("y")), outs=(P("x"),))
    request, text = lower_request(program, mesh=MESH, platform="cuda")
    assert "num_partitions = 8" in text
    assert request.axes == (("x", 2), ("y", 4))
    assert request.inputs[0] == RequestInput(shape=(64, 32), dtype="float32", spec=P("x", "y"), values=ANY)
    assert request.free_outputs == (False,)
    assert len(request.code) > 0


def test_random_keys_travel_as_integers():
    key = jax.eval_shape(lambda: jax.random.key(0))
    program = make(lambda key, x: x + jax.random.normal(key, (8,)), key, array(8), ins=(P(), P("x")))
    request, _ = lower_request(program, mesh=MESH, platform="cuda")
    assert request.inputs[0] == RequestInput(shape=(2,), dtype="uint32", spec=P(), values=ANY)


def test_donated_inputs_know_the_output_that_follows():
    def step(a, b, c):
        return c + 1, a + 1, b.sum()

    types = (array(8, 8), array(8, 8), array(4))
    program = make(step, *types, ins=(P("x"), P("x"), P()), outs=(P(), P("x"), None), donated=(0, 1, 2))
    request, _ = lower_request(program, mesh=MESH, platform="cuda")
    # The second array has no output of its type left, so it is not donated at all.
    assert request.successors == ((0, 1), (2, 0))
    assert request.free_outputs == (False, False, True)
