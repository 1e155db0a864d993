"""The work of the split form, against the operations of the program that it describes."""

import math
import re
from collections import Counter

import jax
import jax.numpy as jnp
import pytest

from jaxquard.gemm import AlgorithmOptions, Dataflow, multiply
from jaxquard.gemm.algorithms.slicing.split_work import split_work
from tests.gemm.meshes import make_mesh
from tests.gemm.sized_products import sized_product

_DOT = re.compile(
    r"stablehlo\.dot_general .*contracting_dims = \[(\d)\] x "
    r".*\(tensor<(\d+)x(\d+)xbf16>.*-> tensor<(\d+)x(\d+)x(?:f32|bf16)>"
)
_PERMUTE = re.compile(r'"stablehlo\.collective_permute".*-> tensor<(\d+)x(\d+)xbf16>')

CASES = [
    (dataflow, mesh_shape, slices, block)
    for dataflow in ("os", "ls", "rs")
    for mesh_shape in ((4, 2), (2, 4), (2, 2), (1, 8), (8, 1))
    for slices, block in ((2, 4), (4, 2), (8, 4))
] + [("ls", (4, 2), 2, 128), ("rs", (2, 4), 2, 128)]


def lower(dataflow, mesh_shape, slices, block, sizes):
    m, k, n = sizes
    how = {"dataflow": dataflow, "slices": slices, "block": block, "split_for_overlap": True}
    run = jax.jit(lambda lhs, rhs: multiply(lhs, rhs, mesh=make_mesh(mesh_shape), **how))
    return run.lower(jax.ShapeDtypeStruct((m, k), jnp.bfloat16), jax.ShapeDtypeStruct((k, n), jnp.bfloat16)).as_text()


def dots(text):
    """The sizes of products, whichever of both matrices is the left one."""
    found = Counter()
    for contracted, *sizes in _DOT.findall(text):
        *lhs, rows, columns = map(int, sizes)
        found[lhs[int(contracted)], *sorted((rows, columns))] += 1
    return found


@pytest.mark.thin(3)
@pytest.mark.parametrize(("dataflow", "mesh_shape", "slices", "block"), CASES)
def test_counts_are_those_of_the_program(dataflow, mesh_shape, slices, block):
    unit = math.lcm(*mesh_shape) * slices * block
    m, k, n = sizes = 2 * unit, 4 * unit, 2 * unit
    text = lower(dataflow, mesh_shape, slices, block, sizes)
    product = sized_product(dataflow=Dataflow(dataflow), m=m, k=k, n=n)
    options = AlgorithmOptions(slices=slices, block=block, split_for_overlap=True)
    work = split_work(product, mesh_shape, options)
    expected = Counter()
    for products, times in ((work.products, slices - 1), (work.last_products, 1)):
        for one in products:
            expected[one.k, *sorted((one.m, one.n))] += times * one.count
    assert dots(text) == expected
    permutes = _PERMUTE.findall(text)
    assert len(permutes) == slices * work.num_permutes
    assert text.count('"stablehlo.all_gather"') == slices * work.num_gathers
    assert work.num_starts == work.num_gathers + work.num_permutes
    if permutes:
        assert {2 * int(rows) * int(columns) for rows, columns in permutes} == {work.permute_bytes}


@pytest.mark.parametrize(("dataflow", "mesh_shape", "slices", "block"), CASES)
def test_all_products_together_are_the_product(dataflow, mesh_shape, slices, block):
    unit = math.lcm(*mesh_shape) * slices * block
    product = sized_product(dataflow=Dataflow(dataflow), m=3 * unit, k=unit, n=5 * unit)
    work = split_work(product, mesh_shape, AlgorithmOptions(slices=slices, block=block, split_for_overlap=True))
    for products in (work.products, work.last_products):
        flops = sum(2 * one.m * one.k * one.n * one.count for one in products)
        assert flops * slices * math.prod(mesh_shape) == product.flops
    assert work.num_products == sum(one.count for one in work.products)


def test_the_work_of_a_slice_by_hand():
    """LS on 8x4 chips: 4 slices of N = 12288, of which a chip's part is 768 wide, in 2 blocks of 384."""
    product = sized_product(dataflow=Dataflow.LS, m=16384, k=12288, n=12288)
    work = split_work(product, (8, 4), AlgorithmOptions(slices=4, block=8, split_for_overlap=True))
    assert [(one.m, one.k, one.n, one.count, one.reads_sum) for one in work.products] == [
        (1024, 3072, 768, 2, False),
        (1024, 3072, 768, 4, True),
        (1024, 3072, 384, 4, True),
    ]
    assert (work.num_gathers, work.num_permutes, work.num_starts) == (1, 6, 7)
    assert work.permute_bytes == 1024 * 768 * 2
    assert work.copied_bytes == 2 * 3072 * 384 * 2
