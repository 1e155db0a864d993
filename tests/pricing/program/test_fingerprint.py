import dataclasses
import functools
import os
import subprocess
import sys

import jax
import jax.experimental.xla_metadata
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from jaxquard.pricing.program.fingerprint import Fingerprints, operation_texts
from tests.pricing.programs import array, make

TYPES = (array(16, 16), array(16, 16))


def body(a, b, *, factor=2.0, precision=None, dims=((1,), (0,)), flip=False, dtype=jnp.float32, rounds=3):
    a, b = (b, a) if flip else (a, b)
    c = lax.dot_general(a, b, (dims, ((), ())), precision=precision) * factor
    c, _ = lax.scan(lambda carry, _: (jnp.tanh(carry) * factor, None), c, None, length=rounds)
    return jax.nn.gelu(c).astype(dtype)


def key(program):
    return Fingerprints().key(program)


def sixteen_bits(key_):
    return jax.random.bits(key_, (16,))


def variants():
    """Programs that all differ from each other."""
    base = make(body, *TYPES)
    yield "base", base
    for name, change in {
        "a literal": {"factor": 3.0},
        "a literal, a little": {"factor": float(np.nextafter(np.float32(2), np.float32(3)))},
        "a parameter": {"precision": lax.Precision.HIGHEST},
        "other dims": {"dims": ((0,), (0,))},
        "order of operands": {"flip": True},
        "a dtype": {"dtype": jnp.bfloat16},
        "inside a loop": {"rounds": 4},
    }.items():
        yield name, make(functools.partial(body, **change), *TYPES)
    yield "a shape", make(body, array(16, 16), array(16, 16 * 2))
    yield "a type of input", make(body, *(array(16, 16, dtype=jnp.bfloat16),) * 2)
    yield "a spec", dataclasses.replace(base, in_specs=(P("x"), P()))
    yield "a spec of the other input", dataclasses.replace(base, in_specs=(P(), P("x")))
    yield "another dim", dataclasses.replace(base, in_specs=(P(None, "x"), P()))
    yield "an output spec", dataclasses.replace(base, out_specs=(P(),))
    yield "a constraint", dataclasses.replace(base, constraints=((0, 0, P("x")),))
    yield "another constraint", dataclasses.replace(base, constraints=((0, 0, P(None, "x")),))
    yield "a constraint elsewhere", dataclasses.replace(base, constraints=((1, 0, P("x")),))
    for name, specs in (("two constraints", [P("x"), P(None, "x")]), ("the other way round", [P(None, "x"), P("x")])):
        yield name, dataclasses.replace(base, constraints=tuple((0, 0, spec) for spec in specs))
    yield "a donation", dataclasses.replace(base, donated=(0,))
    yield "an unused input", make(lambda a, b, c: body(a, b), *TYPES, array(3))
    yield "an output twice", make(lambda a, b: (body(a, b),) * 2, *TYPES)
    yield "random bits", make(sixteen_bits, key_type())
    with jax.threefry_partitionable(not jax.config.jax_threefry_partitionable):
        otherwise = make(sixteen_bits, key_type())
    yield "random bits, otherwise", otherwise
    with jax.experimental.xla_metadata.set_xla_metadata(hint="fast"):
        hinted = make(body, *TYPES)
    yield "a hint to the compiler", hinted
    for name, seed in (("a constant", 0), ("another constant", 1)):
        constant = np.random.default_rng(seed).normal(size=(16, 16)).astype(np.float32)
        yield name, make(lambda a, b, c=constant: body(a, b) + c, *TYPES)


def all_keys():
    return {name: key(program) for name, program in variants()}


def test_different_programs_have_different_keys():
    keys = all_keys()
    assert None not in keys.values()
    assert len(set(keys.values())) == len(keys)


def test_the_order_of_inputs_counts():
    assert key(make(lambda a, b: a - b, *TYPES)) != key(make(lambda b, a: a - b, *TYPES))


def test_names_do_not_count():
    assert key(make(body, *TYPES, name="one")) == key(make(lambda p, q: body(p, q), *TYPES, name="two"))


def layer(x, w, key_):
    """Much of what JAX has: keys, dropout, custom derivatives, remat, gather, scatter, cond, while, sort."""
    hidden = jax.checkpoint(lambda x: jax.nn.relu(x @ w), policy=jax.checkpoint_policies.dots_saveable)(x)
    hidden = jnp.where(jax.random.bernoulli(key_, 0.9, hidden.shape), jax.nn.silu(hidden), 0.0)
    hidden = lax.cond(hidden.sum() > 0, jnp.sin, jnp.cos, hidden)
    rows = jnp.argsort(hidden[:, 0])
    hidden = hidden.at[rows].add(jax.nn.softmax(hidden)[rows])
    top, _ = lax.top_k(hidden, 2)
    return lax.fori_loop(0, 3, lambda _, h: h * 0.5, hidden).sum() + jax.nn.logsumexp(top)


def key_type():
    return jax.eval_shape(lambda: jax.random.key(0))


def test_a_layer_with_its_gradient_has_a_key():
    step = jax.grad(layer, argnums=(0, 1))
    program = make(step, *TYPES, key_type())
    assert key(program) is not None
    assert key(program) == key(make(step, *TYPES, key_type()))
    assert key(program) != key(make(jax.grad(layer), *TYPES, key_type()))


def test_a_callback_has_no_cheap_key():
    def fn(x):
        return jax.pure_callback(lambda x: x, array(16, 16), x)

    assert key(make(fn, TYPES[0])) is None


def test_keys_are_the_same_in_another_process():
    code = (
        "import jax; jax.config.update('jax_num_cpu_devices', 8); jax.config.update('jax_platforms', 'cpu')\n"
        "from tests.pricing import programs as p; from tests.pricing.program import test_fingerprint as t\n"
        "from jaxquard.pricing.program.lower_program import lower_program, lowered_key\n"
        "program = t.make(jax.grad(t.layer), *t.TYPES, t.key_type())\n"
        "print(t.all_keys(), t.key(program), lowered_key(lower_program(program, mesh=p.line_mesh())))\n"
    )
    texts = set()
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(("src", "."))}
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        texts.add(done.stdout)
    assert len(texts) == 1
    assert str(all_keys()) in texts.pop()


def test_operations_around_a_callback_are_distinguished():
    """A callback prints its address: it does not count, and all beside it in the same loop does."""

    def texts(operation):
        def body(x, _):
            return operation(jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((4,), np.float32), x)), None

        return operation_texts(
            jax.make_jaxpr(lambda x: jax.lax.scan(body, x + 1, length=3))(np.ones(4, np.float32)).jaxpr
        )

    add, loop = texts(jnp.sin)
    assert texts(jnp.sin) == [add, loop]
    other_add, other_loop = texts(jnp.sinh)
    assert (other_add == add, other_loop == loop) == (True, False)
