import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jaxquard.pricing import reshard_program
from jaxquard.pricing.program.insert_constraints import insert_constraints
from jaxquard.pricing.program.lower_program import lower_program, lowered_key, program_donations
from tests.pricing.programs import array, line_mesh, make, product


def compiled_text(program):
    return lower_program(program, mesh=line_mesh()).compile().as_text()


def test_a_resharding_moves_data():
    program = reshard_program("r", [array(64, 64)], [P("x")], [P(None, "x")])
    assert "all-to-all" in compiled_text(program)
    gather = reshard_program("g", [array(64, 64)], [P("x")], [P()])
    assert "all-gather" in compiled_text(gather)


def test_constraints_are_applied():
    def two_products(a, b, c):
        return (a @ b) @ c

    types = [array(64, 64)] * 3
    free = make(two_products, *types, ins=(P("x"), P(), P()), outs=(P("x"),))
    held = make(
        two_products, *types, ins=(P("x"), P(), P()), outs=(P("x"),), constraints=((0, 0, P(None, "x")),)
    )  # fmt: skip
    assert not any(name in compiled_text(free) for name in ("all-to-all", "all-gather", "all-reduce"))
    assert any(name in compiled_text(held) for name in ("all-to-all", "all-gather", "all-reduce"))


def test_constraints_keep_the_numbers_and_the_constants():
    table = np.arange(16.0, dtype=np.float32).reshape(4, 4)

    def fn(x):
        y = x @ jax.numpy.asarray(table)
        return y * y + y, y

    closed = jax.make_jaxpr(fn)(array(8, 4))
    position = next(i for i, equation in enumerate(closed.eqns) if equation.primitive.name == "dot_general")
    held = insert_constraints(closed, [(position, 0, P("x"))], mesh=line_mesh())
    assert [e.primitive.name for e in held.eqns].count("sharding_constraint") == 1
    x = jax.numpy.arange(32.0).reshape(8, 4)  # All results are whole numbers: exact in any order.
    for expected, found in zip(fn(x), jax.jit(jax.extend.core.jaxpr_as_fun(held))(x), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_donated_buffers_are_shared_and_useless_donations_dropped():
    program = make(
        lambda w, g, b: (w - g, b.sum()),
        array(64, 64), array(64, 64), array(8),
        ins=(P("x"), P("x"), P()), outs=(P("x"), P()), donated=(0, 2),
    )  # fmt: skip
    assert program_donations(program) == (0,)
    compiled = lower_program(program, mesh=line_mesh()).compile()
    assert compiled.memory_analysis().alias_size_in_bytes == 64 * 64 * 4 // 8


def test_the_lowered_key_does_not_depend_on_names():
    def other(left, right):
        return left @ right

    mesh = line_mesh()
    mine = make(other, array(16, 16), array(16, 16), ins=(P("x"), P()), outs=(P("x"),), name="mine")
    assert lowered_key(lower_program(mine, mesh=mesh)) == lowered_key(lower_program(product(16), mesh=mesh))
    assert lowered_key(lower_program(product(24), mesh=mesh)) != lowered_key(lower_program(product(16), mesh=mesh))


def test_large_constants_are_part_of_the_lowered_key():
    mesh, (first, second) = line_mesh(), np.random.default_rng(0).normal(size=(2, 300, 300)).astype(np.float32)
    one, two = (make(lambda x, c=c: x @ c, array(8, 300)) for c in (first, second))
    assert lowered_key(lower_program(one, mesh=mesh)) != lowered_key(lower_program(two, mesh=mesh))


def test_specs_must_match_inputs():
    with pytest.raises(AssertionError, match="one spec for each input"):
        make(lambda x: x, array(4), ins=(P(), P()))
