"""Leaves that are no arrays; modules of Equinox are in tests/frameworks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxquard.ir.array_leaves import advice_for, check_results, find_no_array


def test_arrays_and_numbers():
    tree = {"a": jnp.ones(2), "b": [np.ones(2), 3, 1.5, True, None], "c": jax.random.key(0)}
    assert find_no_array(tree) is None
    assert check_results(tree, "f") is tree
    jax.make_jaxpr(lambda x: check_results({"x": x}, "f"))(1.0)


def test_the_first_leaf_that_is_none():
    assert find_no_array({"a": 1, "b": [2, "text"], "c": "more"}) == ("['b'][1]", "text")
    with pytest.raises(
        TypeError, match=r"f returns 'text' of type str as result\['b'\]\[1\], not an array. Return arr"
    ):
        check_results({"a": 1, "b": [2, "text"]}, "f")
    with pytest.raises(TypeError, match="f returns 'text' of type str as its result, not an array"):
        check_results("text", "f")


def test_advice_without_a_module():
    assert advice_for("text", {"a": "text"}, otherwise="Leave it out.") == "Leave it out."
