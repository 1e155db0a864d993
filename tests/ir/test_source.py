"""Equations are named by their scope and by the innermost line of the user's own code."""

import sys

import jax
import jax.numpy as jnp
import pytest

from jaxquard.intraop.step.traced_step import trace_step
from jaxquard.ir.source import (
    name_scope,
    raising_line,
    shorten_paths,
    source_frames,
    source_line,
    source_place,
    user_line,
)

# A library that nobody here wrote: its file lies among the installed packages.
LIBRARY = """
import jax
import jax.numpy as jnp

def dense(x, w):
    return jnp.matmul(x, w)

@jax.jit
def jitted(x, w):
    return x @ w
"""
INSTALLED = "/usr/lib/python3/site-packages/{package}/layers/dense.py"


def library(package):
    found = {}
    exec(compile(LIBRARY, INSTALLED.format(package=package), "exec"), found)
    return found


def equations(step, *args, name="dot_general"):
    return [found for found in trace_step(step, args).jaxpr.eqns if found.primitive.name == name]


X, W = jnp.ones((8, 16)), jnp.ones((16, 16))


@pytest.mark.parametrize("call", ["dense", "jitted"])
@pytest.mark.parametrize("package", ["jax", "keras", "models_of_others"])
def test_a_line_is_of_the_users_own_code(package, call):
    found = library(package)

    def step(x, w):
        return found[call](x, w)

    (equation,) = equations(step, X, W)
    assert source_line(equation) == f"test_source.py:{step.__code__.co_firstlineno + 1}"


def test_without_any_it_is_one_of_a_library_by_its_path_there():
    (equation,) = equations(library("models_of_others")["dense"], X, W)
    frames = [frame for frame in source_frames(equation) if "models_of_others" in frame[0]]
    assert shorten_paths(path for path, _ in frames) == {
        INSTALLED.format(package="models_of_others"): "models_of_others/layers/dense.py"
    }


@pytest.mark.parametrize("take", [lambda table, at: table[at], lambda table, at: jnp.take(table, at, axis=0)])
def test_look_ups_have_lines(take):
    """JAX traces `jnp.take` by itself, once for all of its calls."""

    def step(table, at):
        first = take(table, at)
        return first + take(table, at)

    found = equations(step, W, jnp.arange(4), name="gather")
    assert all(source_line(equation).startswith("test_source.py:") for equation in found)
    start = step.__code__.co_firstlineno
    callers = [[line for path, line in source_frames(equation) if path == __file__] for equation in found]
    assert [start + 1 in lines for lines in callers] == [True, False]
    assert [start + 2 in lines for lines in callers] == [False, True]


def test_scopes_are_those_of_the_user():
    def loss(w, x):
        with jax.named_scope("encoder"), jax.named_scope("mlp_0"):
            x = jax.checkpoint(lambda x: jnp.einsum("bd,df->bf", x, w))(x)
        return jnp.sum(x @ w)

    found = equations(jax.grad(loss), W, X)
    assert [name_scope(equation) for equation in found][:2] == ["encoder/mlp_0", ""]
    assert source_place(found[0]).startswith("encoder/mlp_0, test_source.py:")
    assert source_place(found[1]).startswith("test_source.py:")


def test_paths_are_as_long_as_they_must_be():
    paths = ("/home/a/train.py", "/home/a/models/common.py", "/home/a/data/common.py", "common.py")
    assert list(shorten_paths(paths).values()) == ["train.py", "models/common.py", "data/common.py", "common.py"]


def test_a_caller_of_the_users_own_comes_first():
    assert user_line() == f"test_source.py:{sys._getframe().f_lineno}"
    found = {"user_line": user_line}
    exec(compile("def ask():\n    return user_line()", INSTALLED.format(package="keras"), "exec"), found)
    assert found["ask"]() == f"test_source.py:{sys._getframe().f_lineno}"


def test_an_error_names_the_innermost_line_of_the_users_own():
    found = {}
    exec(compile("def fail():\n    1 / 0", INSTALLED.format(package="keras"), "exec"), found)
    with pytest.raises(ZeroDivisionError) as raised:
        found["fail"]()
    assert raising_line(raised.value) == f"test_source.py:{sys._getframe().f_lineno - 1}"
    assert raising_line(ValueError()) == ""
