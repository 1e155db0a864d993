"""Specs are followed through operations as XLA's propagation would."""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.extend import core

from jaxquard.ir.dependence import can_partition, dependences
from jaxquard.ir.jaxpr_tools import is_var
from jaxquard.pipeline.specs.infer_specs import SpecRules, spec_of
from tests.ir.dependence import cases
from tests.ir.dependence.tracing import flat_equations

X, Y = ("x",), ("y",)
RULES = SpecRules({"x": 2, "y": 2})
MATRIX = jax.ShapeDtypeStruct((4, 6), jnp.float32)
CUBE = jax.ShapeDtypeStruct((4, 6, 8), jnp.float32)
TABLE = jax.ShapeDtypeStruct((10, 6), jnp.float32)
TOKENS = jax.ShapeDtypeStruct((4, 2), jnp.int32)

ROW = jax.ShapeDtypeStruct((1, 8), jnp.float32)
COLUMNS = jax.ShapeDtypeStruct((4, 1, 6), jnp.float32)
SQUARE = jax.ShapeDtypeStruct((4, 4), jnp.float32)

opaque_p = core.Primitive("opaque")
opaque_p.def_abstract_eval(lambda array: array)

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
    "does not divide": (lambda a: a.reshape(3, 8), [(MATRIX, (X,))], [()]),
    "a dim of one element goes": (lambda a: a.reshape(8), [(ROW, ((), X))], [(X,)]),
    "a dim of one element comes": (lambda a: a.reshape(1, 24), [(MATRIX, (X,))], [((), X)]),
    "a dim of one element moves": (lambda a: a.reshape(1, 4, 6), [(COLUMNS, (X, (), Y))], [((), X, Y)]),
    "two axes, one divides": (lambda a: a.reshape(2, 12), [(MATRIX, (("x", "y"),))], [(X,)]),
    "square product": (lambda a, b: a @ b, [(SQUARE, ((), X)), (SQUARE, (X,))], [()]),
    "update in place": (
        lambda a, b: lax.dynamic_update_slice(a, b, (1, 0)),
        [(MATRIX, (X,)), (CUBE.update(shape=(1, 6)), ((), Y))],
        [(X, Y)],
    ),
    "scattered updates": (
        lambda a, i, b: a.at[i].add(b),
        [(TABLE, ()), (TOKENS.update(shape=(4,)), (X,)), (MATRIX, (X, Y))],
        [((), Y)],
    ),
    "reversed": (lambda a: lax.rev(a, (0,)), [(MATRIX, (X, Y))], [(X, Y)]),
    "running sum": (lambda a: jnp.cumsum(a, 0), [(MATRIX, (X, Y))], [(X, Y)]),
    "stacked": (lambda a: jnp.stack([a, a]), [(MATRIX, (X, Y))], [((), X, Y)]),
    "no rule": (lambda a: opaque_p.bind(a), [(MATRIX, (X, Y))], [(X, Y)]),
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


HAS_BODY = frozenset("jit scan while cond custom_jvp_call custom_vjp_call remat2 closed_call".split())


def answer(equation, sharded_input, sharded_dim, axis_size):
    """The output dims that are sharded if one input dim is, and nothing else."""
    rules = SpecRules({"x": axis_size})
    specs = {equation.invars[sharded_input]: ((),) * sharded_dim + (X,)}
    rules.follow([equation], specs)
    return [{dim for dim, axes in enumerate(specs[var]) if axes == X} for var in equation.outvars]


@pytest.mark.thin(2)
@pytest.mark.parametrize("name", cases.CASES)
def test_specs_follow_links(name):
    """Sharding a dim shards those that are linked with it; others only as in an operand of their own shape."""

    num_sharded = 0

    # The same examples under every profile: of random ones, all may happen to have nothing to shard.
    @settings(max_examples=20, derandomize=True)
    @given(data=st.data())
    def check(data):
        nonlocal num_sharded
        fn, types = cases.CASES[name](data.draw)
        for equation in flat_equations(fn, *types):
            if equation.primitive.name not in HAS_BODY and equation.invars:
                num_sharded += check_equation(equation, data.draw)

    check()
    assert num_sharded > 0, "nothing was sharded, so nothing was checked"


def check_equation(equation, draw):
    """Shards a dim of an input, and returns the number of output dims that follow."""
    number = draw(st.integers(0, len(equation.invars) - 1))
    atom = equation.invars[number]
    if not is_var(atom) or not atom.aval.shape or equation.invars.count(atom) > 1:
        return 0
    num_sharded = 0
    dim = draw(st.integers(0, len(atom.aval.shape) - 1))
    for num_shards in (2, 3):
        found = answer(equation, number, dim, num_shards)
        for var, row, sharded in zip(equation.outvars, dependences(equation).links, found, strict=True):
            linked = {link.out_dim for links in row for link in links}
            expected = {link.out_dim for link in row[number] if link.in_dim == dim and can_partition(link, num_shards)}
            if atom.aval.shape == var.aval.shape and dim not in linked and var.aval.shape[dim] % num_shards == 0:
                expected |= {dim}
            assert sharded == (expected if len(expected) < 2 else {min(expected)}), equation
            num_sharded += len(sharded)
    return num_sharded
