"""Pairs of results with the arguments that they replace; the other arguments are data."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxquard.runtime.call_leaves import pair_results


class State(NamedTuple):
    params: dict
    opt: object


MATRIX = jax.ShapeDtypeStruct((2, 2), jnp.float32)
VECTOR = jax.ShapeDtypeStruct((2,), jnp.float32)
COUNT = jax.ShapeDtypeStruct((), jnp.int32)


def test_state_first():
    state = {"params": {"a": MATRIX, "b": VECTOR}, "count": COUNT}
    assert pair_results([state, MATRIX], (state, VECTOR), donated=[True, False]) == [0, 1, 2, None]


def test_state_last_and_apart():
    params, opt = {"a": MATRIX, "b": VECTOR}, [COUNT, {"a": MATRIX, "b": VECTOR}]
    result = (VECTOR, params, opt)
    assert pair_results([params, opt, VECTOR], result, donated=[True, True, False]) == [1, 2, 3, 4, 5, None]


def test_children_of_a_donated_argument():
    state = State(params={"a": MATRIX}, opt=COUNT)
    result = ({"a": MATRIX}, COUNT, VECTOR)
    assert pair_results([state], result, donated=[True]) == [0, 1]
    assert pair_results([state], result, donated=[False]) == [None, None]


def test_a_result_is_used_once():
    params = {"a": MATRIX}
    assert pair_results([params, params], (params,), donated=[True, True]) == [0, None]


def test_data_of_the_type_of_a_result():
    assert pair_results([MATRIX], MATRIX, donated=[False]) == [None]
    assert pair_results([MATRIX], MATRIX, donated=[True]) == [0]


def test_other_shapes_and_none_leaves():
    before, after = {"a": MATRIX, "none": None}, {"a": VECTOR, "none": None}
    assert pair_results([before], (after,), donated=[True]) == [None]
    assert pair_results([before, None], (before, None), donated=[True, True]) == [0]
