"""The equations of a training step of the model zoo all have rules, and a layer keeps its batch."""

import jax
import jax.numpy as jnp
import pytest

from jaxquard.ir.dependence import dependences
from jaxquard.models import gpt
from tests.intraop.steps import ZOO, analyse, zoo_types
from tests.ir.dependence.tracing import f32, links_of_call

CONFIG = gpt.GptConfig(
    vocab_size=64, num_layers=2, num_heads=4, model_dim=32, sequence_length=8, dropout_rate=0.1, dtype=jnp.float32
)
KEY = jax.random.key(2)


def gradient_jaxpr(loss, params, remat):
    tokens = jax.ShapeDtypeStruct((4, 8), jnp.int32)
    return jax.make_jaxpr(
        jax.grad(lambda params, batch: loss(params, batch, CONFIG, key=KEY, remat=remat)),
    )(params, {"tokens": tokens, "targets": tokens})


@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("is_scanned", [False, True])
def test_every_equation_of_gpt_has_a_rule(is_scanned, remat):
    params = jax.eval_shape(lambda key: gpt.init(key, CONFIG), KEY)
    if is_scanned:
        jaxpr = gradient_jaxpr(gpt.loss_scanned, jax.eval_shape(gpt.stack_layers, params), remat)
    else:
        jaxpr = gradient_jaxpr(gpt.loss, params, remat)
    memo = {}
    found = [dependences(equation, memo) for equation in jaxpr.eqns]
    assert all(dependence.is_known for dependence in found)
    assert {name for dependence in found for name in dependence.unknown_primitives} == set()


@pytest.mark.parametrize("name", ZOO)
def test_no_step_of_the_zoo_has_an_operation_without_a_rule(name):
    graph = analyse(*zoo_types(name, num_layers=1, dropout_rate=0.1, optimizer="adam")).graph
    assert graph.unknown_primitives() == ()
    assert all(graph.links(position).is_known for position in range(len(graph.equations)))


def test_attention_can_be_sharded_by_batch_and_its_inside_by_heads():
    def attend(query, key, value):
        scores = jnp.einsum("bqhk,bshk->bhqs", query, key)
        return jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(scores), value)

    found = links_of_call(attend, *[f32(4, 8, 2, 16)] * 3)
    assert found == [["0<-0/4 1<-1/8 2<-2/2", "0<-0/4 2<-2/2", "0<-0/4 2<-2/2 3<-3/16"]]
