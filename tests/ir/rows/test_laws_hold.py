"""The laws of every value, against numbers: of losses of the literature and their gradients, and of random programs."""

import jax
import pytest
from hypothesis import given

from jaxquard.ir.rows import Kind
from tests.few_examples import few_examples
from tests.ir.rows.check_laws import check_laws
from tests.ir.rows.generate import make_batch as random_batch
from tests.ir.rows.generate import make_loss, make_weights, programs
from tests.planner.step.losses import CASES, make_batch, make_params

# What cannot be evaluated operation by operation.
_LEFT_OUT = {"a_callback"}


def gradients(case):
    def run(params, batch):
        (loss, aux), grads = jax.value_and_grad(scalar, has_aux=True)(params, batch)
        return loss, grads, aux

    def scalar(params, batch):
        found, aux = case.loss(params, batch) if case.has_aux else (case.loss(params, batch), None)
        return (found[0] if case.reduction == "weighted" else found), aux

    return run


@pytest.mark.thin(24)
@pytest.mark.parametrize("num_parts", [2, 16])
@pytest.mark.parametrize("name", [name for name in CASES if name not in _LEFT_OUT])
def test_laws_of_losses_hold(name, num_parts):
    if name in ("norm_of_neighbours", "norm_of_eighths") and num_parts == 16:
        pytest.skip("it does not take one row")
    found = check_laws(gradients(CASES[name]), make_params(), make_batch(), num_parts)
    assert sum(found.values()) > found.get(Kind.MIXED, 0)


@few_examples(20)
@given(program=programs())
def test_laws_of_random_programs_hold(program):
    check_laws(jax.value_and_grad(make_loss(program)), make_weights(), random_batch(), 2)
