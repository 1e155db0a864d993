"""The error of bf16 products: sums in float32, each rounded to bf16 once, and no more.

With unit roundoffs u (float32, 2^-24) and v (bf16, 2^-8), of K products, which are exact, a sum in float32 is off by at
most g |A||B| with g = K u / (1 - K u), in whatever order. Then it is rounded once: v |C|. Where the dim that is summed
over is sharded over P chips (over the columns of the mesh in LS, its rows in RS), sums travel in bf16, and P of them
are rounded, whatever the algorithm: of those that a chip hands on P - 1, and the result; or P partial products, whose
roundings together weigh as one, and P - 1 sums. Each is at most the sum T of the chips' partial products, taken without
their signs. T, unlike |A||B|, is small where signs cancel, so the bound is near to what happens.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxquard.gemm import multiply
from jaxquard.gemm.algorithms.products import product as layout
from tests.gemm.meshes import compile_quickly, make_mesh
from tests.gemm.variants import VARIANTS

M, K, N = 64, 256, 64
FLOAT32, BF16 = 2.0**-24, 2.0**-8
NAMES = [
    "meshslice-4", "meshslice-parts", "collective", "wang-rows", "wang-columns", "wang-both-ways", "summa", "cannon",
    "1d_tp", "fsdp",
]  # fmt: skip


def matrices():
    draw = np.random.default_rng(0)
    return jnp.asarray(draw.normal(size=(M, K)), jnp.bfloat16), jnp.asarray(draw.normal(size=(K, N)), jnp.bfloat16)


def shape_of(name):
    """The mesh as the algorithm sees it."""
    return {"cannon": (2, 2), "1d_tp": (1, 8), "fsdp": (8, 1)}.get(VARIANTS[name].algorithm, (4, 2))


def errors(name, dataflow):
    """Of each element of the product, how far it is off, and how far it may be."""
    lhs, rhs = matrices()
    mesh = make_mesh((2, 2) if name == "cannon" else (4, 2))
    how = {"mesh": mesh, "algorithm": VARIANTS[name].algorithm, "dataflow": dataflow, **VARIANTS[name].options}
    found = compile_quickly(lambda lhs, rhs: multiply(lhs, rhs, **how), lhs, rhs)(lhs, rhs)
    assert found.dtype == jnp.bfloat16
    chips = {"os": 1, "ls": shape_of(name)[1], "rs": shape_of(name)[0]}[dataflow]
    exact, allowed = bound(lhs, rhs, chips)
    return np.abs(np.asarray(found, np.float64) - exact), allowed


def bound(lhs, rhs, chips):
    lhs, rhs = np.asarray(lhs, np.float64), np.asarray(rhs, np.float64)
    growth = K * FLOAT32 / (1 - K * FLOAT32)
    in_float32 = growth * (np.abs(lhs) @ np.abs(rhs))
    partials = [a @ b for a, b in zip(np.split(lhs, chips, axis=1), np.split(rhs, chips), strict=True)]
    largest = sum(map(np.abs, partials)) + in_float32
    return lhs @ rhs, in_float32 + ((1 + BF16) ** chips - 1) * largest


@pytest.mark.thin(4)
@pytest.mark.parametrize("dataflow", ["os", "ls", "rs"])
@pytest.mark.parametrize("name", NAMES)
def test_no_more_is_rounded_than_must_be(name, dataflow):
    off, allowed = errors(name, dataflow)
    assert (off <= allowed).all()


def test_every_algorithm_is_held_to_it():
    assert {VARIANTS[name].algorithm for name in NAMES} == {variant.algorithm for variant in VARIANTS.values()}


@pytest.mark.parametrize("chips", [1, 2, 4, 8])
def test_sums_in_bf16_would_be_seen(chips):
    """Term by term, for as many chips as K may be sharded over."""
    lhs, rhs = matrices()
    total = np.zeros((M, N), jnp.bfloat16)
    for k in range(K):
        total = total + np.asarray(lhs)[:, k, None] * np.asarray(rhs)[k]
    exact, allowed = bound(lhs, rhs, chips)
    assert (np.abs(total.astype(np.float64) - exact) > allowed).any()


@pytest.mark.parametrize("name", ["meshslice-4", "wang-rows", "summa", "cannon"])
def test_slices_summed_in_bf16_would_be_seen(name, monkeypatch):
    """The products of slices themselves, of which there are few."""
    monkeypatch.setattr(layout, "accumulator", lambda dtype, *others: dtype)
    off, allowed = errors(name, "os")
    assert (off > allowed).any()
