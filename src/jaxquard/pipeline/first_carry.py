"""The carry that the user gives to `accumulate_grads`; checks that its function returns one of the same types."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxquard.errors import LoopError
from jaxquard.ir.array_leaves import advice_for
from jaxquard.ir.typed_shardings import abstract_type, type_axes


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstCarry:
    """The carry of the first microbatch.

    Attributes:
        names: for each leaf, its path in the carry.
        leaves: its arrays.
        tree: their structure.
        source: the user's line.
    """

    names: tuple[str, ...]
    leaves: tuple[Any, ...]
    tree: Any
    source: str

    @property
    def type(self) -> Any:
        """The carry with types in place of arrays."""
        return jax.tree.unflatten(self.tree, [abstract_type(jax.typeof(leaf)) for leaf in self.leaves])

    def check(self, fn: Callable[..., Any]) -> Callable[[Any, Any], Any]:
        """Returns `fn` with the carry that it returns checked against this one."""

        def run(carry: Any, microbatch: Any) -> tuple[Any, Any]:
            found = fn(carry, microbatch)
            if type(found) is not tuple or len(found) != 2:
                raise LoopError(
                    f"accumulate_grads at {self.source} has a carry, so its function returns a pair (carry, outputs); "
                    f"found {_describe(found)}."
                )
            carry, outputs = found
            self._check_tree(carry)
            return jax.tree.map(self._check_leaf, self.type, carry, jax.tree.unflatten(self.tree, self.names)), outputs

        return run

    def _check_tree(self, carry: Any) -> None:
        found = jax.tree.structure(carry)
        if found != self.tree:
            raise LoopError(
                f"accumulate_grads at {self.source}: the function returns a carry of another structure than it gets: "
                f"{found}, not {self.tree}. Return (carry, outputs), and in the carry every value that came in."
            )

    def _check_leaf(self, wanted: Any, leaf: Any, name: str) -> Any:
        found = jax.typeof(leaf)
        if (found.shape, found.dtype) != (wanted.shape, wanted.dtype) and not _fits_weakly(found, wanted):
            raise LoopError(
                f"accumulate_grads at {self.source}: {name} comes in as {_write(wanted)} and is returned as "
                f"{_write(found)}. Return the type that came in, or give a first carry of the other."
            )
        if type_axes(found) != type_axes(wanted):
            raise LoopError(
                f"accumulate_grads at {self.source}: {name} comes in sharded over {_write_axes(wanted)} and is "
                f"returned sharded over {_write_axes(found)}. Return it as it came in, with jax.sharding.reshard."
            )
        return jnp.asarray(leaf) if found.dtype == wanted.dtype else jnp.asarray(leaf, wanted.dtype)


def first_carry(carry: Any, source: str) -> FirstCarry | None:
    """Returns the carry that the user gave, or None without one."""
    if carry is None:
        return None
    paths, tree = jax.tree.flatten_with_path(carry)
    return FirstCarry(
        names=tuple(f"carry{jax.tree_util.keystr(path)}" for path, _ in paths),
        leaves=tuple(_as_array(leaf, path, carry, source) for path, leaf in paths),
        tree=tree,
        source=source,
    )


def _as_array(leaf: Any, path: Any, carry: Any, source: str) -> Any:
    try:
        return jnp.asarray(leaf)
    except TypeError as error:
        cure = advice_for(
            leaf, carry, action="carry", place="in the function", otherwise="Carry arrays, and close over the rest."
        )
        raise LoopError(
            f"accumulate_grads at {source}: carry{jax.tree_util.keystr(path)} is {leaf!r}, not an array. {cure}"
        ) from error


def _fits_weakly(found: Any, wanted: Any) -> bool:
    """Returns True for a number without a dtype of its own that the carry's dtype can hold: `1` beside `float32`."""
    weak = getattr(found, "weak_type", False) and found.shape == wanted.shape
    return weak and jnp.promote_types(found.dtype, wanted.dtype) == wanted.dtype


def _write(type_: Any) -> str:
    return f"{type_.dtype}[{','.join(map(str, type_.shape))}]"


def _write_axes(type_: Any) -> str:
    return ", ".join("x".join(axes) or "nothing" for axes in type_axes(type_)) or "nothing"


def _describe(found: Any) -> str:
    return f"a tuple of {len(found)}" if type(found) is tuple else type(found).__name__
