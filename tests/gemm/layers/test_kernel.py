"""A layer with kernel="pallas": one of its three products runs in the kernel; the numbers stay."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.pallas import tpu as pltpu
from numpy.testing import assert_array_equal

from jaxquard.errors import GemmError
from jaxquard.gemm import LayerPlan, Stationary, dense, matmul
from tests.gemm.meshes import exact, make_mesh, whole_numbers


@pytest.fixture
def interpreter():
    with pltpu.force_tpu_interpret_mode():
        yield


def gradients(**how):
    def loss(x, w):
        y = matmul(x, w, mesh=make_mesh((2, 2)), kernel="pallas", **how)
        return jnp.sum(y * y)

    return jax.value_and_grad(loss, (0, 1))


def matrices():
    return whole_numbers(8, 16, seed=0), whole_numbers(16, 8, seed=1)


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("stationary", ["y", "x", "w"])
def test_the_product_in_os_is_the_kernel(stationary):
    assert (
        str(jax.make_jaxpr(gradients(stationary=stationary, slices=2, block=1))(*matrices())).count("pallas_call[") == 1
    )


@pytest.mark.usefixtures("interpreter")
def test_a_plan_says_nothing_of_kernels():
    plan = LayerPlan(name="up", stationary=Stationary.Y, slices=(2, 2, 2), block=1, split_for_overlap=True)
    assert str(jax.make_jaxpr(gradients(plan=plan))(*matrices())).count("pallas_call[") == 1


@pytest.mark.slow
@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("stationary", ["y", "x", "w"])
def test_numbers_forward_and_backward(stationary):
    x, w = matrices()
    loss, (dx, dw) = jax.jit(gradients(stationary=stationary, slices=2, block=1))(x, w)
    y = exact(x) @ exact(w)
    assert loss == (y * y).sum()
    assert_array_equal(exact(dx), 2 * y @ exact(w).T)
    assert_array_equal(exact(dw), 2 * exact(x).T @ y)


def test_bad_words():
    mesh = make_mesh((2, 2))
    with pytest.raises(GemmError, match="kernel must be one of 'xla', 'pallas', but is 'mosaic'"):
        dense(8, mesh=mesh, kernel="mosaic")
    with pytest.raises(GemmError, match="collective takes no kernel, which is an option of meshslice"):
        dense(8, mesh=mesh, kernel="pallas", algorithm="collective")
    with pytest.raises(GemmError, match="is for TPUs, but the devices are 'cpu'"):
        matmul(*matrices(), mesh=mesh, kernel="pallas")
    assert_array_equal(exact(matmul(*matrices(), mesh=mesh, kernel="xla")), exact(matrices()[0]) @ exact(matrices()[1]))
