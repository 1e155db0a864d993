"""Each algorithm gives `lhs @ rhs` and sends the bytes of its closed formula, in every dataflow and form."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from numpy.testing import assert_array_equal

from jaxquard.gemm import Dataflow, Product, multiply
from jaxquard.gemm.algorithms.products.shardings import lhs_spec, rhs_spec
from jaxquard.gemm.algorithms.registry import find_algorithm
from tests.gemm.collectives import expected_traffic, traffic
from tests.gemm.meshes import compile_quickly, exact, make_mesh, place, whole_numbers
from tests.gemm.variants import EVERY_CASE, VARIANTS, mesh_id

SIZES = {"M": 32, "K": 64, "N": 96}
FORMS = list(itertools.product(["os", "ls", "rs"], [False, True]))


def check(mesh_shape, name, dataflow, is_transposed):
    variant, mesh = VARIANTS[name], make_mesh(mesh_shape)
    rows, columns = find_algorithm(variant.algorithm).view(("x",), ("y",))
    product = Product(dataflow=Dataflow(dataflow), rows=rows, columns=columns)
    product = product.transposed() if is_transposed else product
    lhs = place(whole_numbers(SIZES["M"], SIZES["K"], seed=0), mesh, lhs_spec(product))
    rhs = place(whole_numbers(SIZES["K"], SIZES["N"], seed=1), mesh, rhs_spec(product))
    how = {"mesh": mesh, "algorithm": variant.algorithm, "dataflow": dataflow, "is_transposed": is_transposed}
    compiled = compile_quickly(lambda lhs, rhs: multiply(lhs, rhs, **how, **variant.options), lhs, rhs)
    assert_array_equal(exact(compiled(lhs, rhs)), exact(lhs) @ exact(rhs))
    assert traffic(compiled.as_text(), mesh_shape) == expected_traffic(
        variant, dataflow, sizes=SIZES, mesh_shape=mesh_shape, is_transposed=is_transposed
    )


def few_cases():
    """All forms of MeshSlice on 4x2; of the others, forms in turn; long loops are left to the slow test."""
    for number, (mesh_shape, name) in enumerate(EVERY_CASE):
        if name.startswith("summa") and max(mesh_shape) == 8:
            continue
        forms = FORMS if (mesh_shape, name) == ((4, 2), "meshslice-2") else [FORMS[number % len(FORMS)]]
        for form in forms:
            yield (mesh_shape, name, *form)


@pytest.mark.thin(4)
@pytest.mark.parametrize(("mesh_shape", "name", "dataflow", "is_transposed"), list(few_cases()), ids=mesh_id)
def test_value_and_traffic(mesh_shape, name, dataflow, is_transposed):
    check(mesh_shape, name, dataflow, is_transposed)


@pytest.mark.slow
@pytest.mark.parametrize(("mesh_shape", "name"), EVERY_CASE, ids=mesh_id)
@pytest.mark.parametrize(("dataflow", "is_transposed"), FORMS)
def test_every_value_and_traffic(mesh_shape, name, dataflow, is_transposed):
    check(mesh_shape, name, dataflow, is_transposed)


@pytest.mark.thin(3)
@pytest.mark.parametrize("dataflow", ["os", "ls", "rs"])
@pytest.mark.parametrize("name", ["meshslice-2", "wang-columns", "wang-rows"])
def test_bf16_is_added_in_float32(name, dataflow):
    """The sum 1000 of ones would stop at 256 in bf16, and each partial sum is a bf16 number."""
    variant, mesh = VARIANTS[name], make_mesh((2, 2))
    lhs, rhs = jnp.ones((16, 1024), jnp.bfloat16), jnp.ones((1024, 16), jnp.bfloat16)
    how = {"mesh": mesh, "algorithm": variant.algorithm, "dataflow": dataflow}
    found = compile_quickly(lambda lhs, rhs: multiply(lhs, rhs, **how, **variant.options), lhs, rhs)(lhs, rhs)
    assert found.dtype == jnp.bfloat16
    assert_array_equal(exact(found), np.full((16, 16), 1024.0))


def test_what_travels_of_a_bf16_sum_is_bf16():
    """By what is asked of XLA: on a CPU, XLA itself adds in float32."""

    mesh = make_mesh((4, 2))
    matrix = jax.ShapeDtypeStruct((64, 64), jnp.bfloat16)
    text = jax.jit(lambda lhs, rhs: multiply(lhs, rhs, mesh=mesh, dataflow="ls")).lower(matrix, matrix).as_text()
    assert "(tensor<16x64xbf16>) -> tensor<16x32xbf16>" in text


@pytest.mark.thin(3)
@pytest.mark.parametrize("names", [("x", "y"), ("y", "x")])
@pytest.mark.parametrize("algorithm", ["fsdp", "cannon", "summa"])
def test_axes_may_be_named_in_any_order(algorithm, names):
    mesh = make_mesh((2, 2))
    lhs, rhs = whole_numbers(8, 16, seed=0), whole_numbers(16, 24, seed=1)
    how = {"mesh": mesh, "axis_names": names, "algorithm": algorithm, "dataflow": "ls"}
    found = compile_quickly(lambda lhs, rhs: multiply(lhs, rhs, **how), lhs, rhs)(lhs, rhs)
    assert_array_equal(exact(found), exact(lhs) @ exact(rhs))


def test_the_transposed_form_is_the_product_of_transposed_matrices():
    """Section 3.2.1: C^T = OS(B^T, A^T), and its shards are those of the transposed form, transposed."""
    mesh = make_mesh((4, 2))
    lhs, rhs = whole_numbers(16, 32, seed=0), whole_numbers(32, 64, seed=1)
    how = {"mesh": mesh, "slices": 2, "block": 2}
    literal = compile_quickly(lambda lhs, rhs: multiply(rhs.T, lhs.T, **how), lhs, rhs)(lhs, rhs)
    ours = compile_quickly(lambda lhs, rhs: multiply(lhs, rhs, is_transposed=True, **how), lhs, rhs)(lhs, rhs)
    assert (literal.sharding.spec, ours.sharding.spec) == (P("x", "y"), P("y", "x"))
    for one, other in zip(literal.addressable_shards, ours.addressable_shards, strict=True):
        assert_array_equal(np.asarray(one.data), np.asarray(other.data).T)
