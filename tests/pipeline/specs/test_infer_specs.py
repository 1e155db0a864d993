"""Specs are followed through operations as XLA's propagation would."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from jaxquard.pipeline.specs.infer_specs import SpecRules, spec_of

X, Y = ("x",), ("y",)
RULES = SpecRules({"x": 2, "y": 2})
MATRIX = jax.ShapeDtypeStruct((4, 6), jnp.float32)
CUBE = jax.ShapeDtypeStruct((4, 6, 8), jnp.float32)
TABLE = jax.ShapeDtypeStruct((10, 6), jnp.float32)
TOKENS = jax.ShapeDtypeStruct((4, 2), jnp.int32)

CASES = {
    "elementwise": (lambda a, b: a + b, [(MATRIX, (X,)), (MATRIX, ((), Y))], [(X, Y)]),
    "transpose": (lambda a: a.T, [(MATRIX, (X, Y))], [(Y, X)]),
    "sum": (lambda a: a.sum(0), [(CUBE, (X, Y))], [(Y,)]),
    "sum of all": (jnp.sum, [(MATRIX, (X, Y))], [()]),
    "broadcast": (lambda a: jnp.broadcast_to(a, (3, 4, 6)), [(MATRIX, (X, Y))], [((), X, Y)]),
    "expand": (lambda a: a[:, None], [(MATRIX, (X, Y))], [(X, (), Y)]),
    "squeeze": (lambda a: a[:, None, :][:, 0], [(MATRIX, (X, Y))], [(X, Y)]),
    "product": (lambda a, b: a @ b, [(MATRIX, (X,)), (CUBE.update(shape=(6, 8)), ((), Y))], [(X, Y)]),
    "contracted": (lambda a, b: a @ b, [(MATRIX, ((), X)), (CUBE.update(shape=(6, 8)), (X,))], [()]),
    "batched product": (
        lambda a, b: jnp.einsum("bij,bjk->bik", a, b),
        [(CUBE, (X,)), (CUBE.update(shape=(4, 8, 2)), (X, (), Y))],
        [(X, (), Y)],
    ),
    "lookup": (lambda a, i: jnp.take(a, i, axis=0, mode="clip"), [(TABLE, ((), Y)), (TOKENS, (X,))], [(X, (), Y)]),
    "merged dims": (lambda a: a.reshape(24, 8), [(CUBE, (X, (), Y))], [(X, Y)]),
    "split dims": (lambda a: a.reshape(4, 2, 3, 8), [(CUBE, (X, Y))], [(X, Y)]),
    "slice": (lambda a: a[:, :3], [(MATRIX, (X, Y))], [(X,)]),
    "concatenated": (lambda a: jnp.concatenate([a, a], 1), [(MATRIX, (X, Y))], [(X,)]),
    "scan": (
        lambda a, c: lax.scan(lambda s, w: (s + w, s), c, a),
        [(CUBE, ((), X)), (CUBE.update(shape=(6, 8)), (X,))],
        [(X,), ((), X)],
    ),
    "cond": (lambda a: lax.cond(True, lambda v: v * 2, lambda v: v, a), [(MATRIX, (X,))], [(X,)]),
    "checkpoint": (jax.checkpoint(lambda a: jnp.sin(a).T), [(MATRIX, (X, Y))], [(Y, X)]),
    "does not divide": (lambda a: a.reshape(1, 24), [(MATRIX, (X,))], [()]),
    "softmax": (jax.nn.softmax, [(MATRIX, (X,))], [(X,)]),
}


@pytest.mark.parametrize(("fn", "inputs", "expected"), CASES.values(), ids=CASES)
def test_rules(fn, inputs, expected):
    jaxpr = jax.make_jaxpr(fn)(*(type_ for type_, _ in inputs)).jaxpr
    found = RULES.call(jaxpr, [spec for _, spec in inputs])
    fitted = [RULES.fit(spec, atom.aval.shape) for spec, atom in zip(found, jaxpr.outvars, strict=True)]
    assert fitted == expected


def test_fitting():
    assert RULES.fit((X, Y), (4, 6)) == (X, Y)
    assert RULES.fit((X, Y), (3, 6)) == ((), Y), "3 does not divide"
    assert RULES.fit((X, X), (4, 6)) == (X,), "an axis is used once"
    assert RULES.fit((("x", "y"),), (4,)) == (("x", "y"),)
    assert RULES.fit((("z",),), (4,)) == (), "an axis of another mesh"


def test_partition_specs_as_data():
    P = jax.sharding.PartitionSpec
    assert spec_of(P("x", None, ("x", "y"))) == (X, (), ("x", "y"))
    assert spec_of(P(P.UNCONSTRAINED, "y")) == ((), Y)
