"""Pytrees whose leaves are arrays: finds what is none, and says how to take a module of Equinox apart.

A module of Equinox is a pytree, and its functions (an activation) are leaves of it. `jax.jit` takes arrays alone.
"""

import sys
from typing import Any

import jax
from jax.tree_util import keystr


def find_no_array(tree: Any) -> tuple[str, Any] | None:
    """Returns the path and the value of the first leaf that is neither an array nor a number; None without one."""
    for path, leaf in jax.tree.leaves_with_path(tree):
        try:
            jax.typeof(leaf)
        except TypeError:
            return keystr(path), leaf
    return None


def advice_for(leaf: Any, tree: Any, *, action: str = "pass", place: str = "in the step", otherwise: str) -> str:
    """Returns what to do about a leaf that is no array.

    Args:
        tree: the pytree that has the leaf.
        action: what the user is doing with the tree: "pass", "return" or "carry".
        place: where the user needs the whole module.
        otherwise: the advice if the leaf is of no module.
    """
    module = _module_of(leaf, tree)
    if module is None:
        return otherwise
    return (
        f"It is a leaf of the module {type(module).__name__}: split the module by `params, static = "
        f"eqx.partition(module, eqx.is_array)`, {action} `params`, and call `eqx.combine(params, static)` {place}."
    )


def check_results(results: Any, name: str) -> Any:
    """Returns the results of a function that is traced.

    Raises:
        TypeError: if a leaf is no array.
    """
    found = find_no_array(results)
    if found is not None:
        path, leaf = found
        where = f"as result{path}" if path else "as its result"
        cure = advice_for(leaf, results, action="return", place="where it is used", otherwise="Return arrays alone.")
        raise TypeError(f"{name} returns {leaf!r} of type {type(leaf).__name__} {where}, not an array. {cure}")
    return results


def _module_of(leaf: Any, tree: Any) -> Any:
    """Returns the module of Equinox in a pytree that has a leaf, or None."""
    equinox = sys.modules.get("equinox")
    if equinox is None:
        return None
    nodes = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, equinox.Module))
    modules = (node for node in nodes if isinstance(node, equinox.Module))
    return next((node for node in modules if any(leaf is other for other in jax.tree.leaves(node))), None)
