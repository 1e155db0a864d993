"""`pipeline_yield` and `task`: where a stage ends (JaxPP, section 3.2).

Both are the identity. A mark is one equation in the traced step, and differentiation gives it a
twin: the transpose of the mark at the end of stage k is the mark at the end of the backward of
stage k+1, since the cotangents that pass through it are the results of that backward. The two
share a `Mark`, which also holds the name and the user's line.
"""

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from jaxquard.errors import MarkError
from jaxquard.ir.source import user_line


class MarkRole(enum.Enum):
    """The values that a mark equation passes on, in JAX's words for differentiation.

    Tangents go the way of the primals, from the stage that ends to the next; cotangents go back. So the tangents of
    cotangents, in a second derivative, are cotangents here, and cotangents of cotangents are tangents.
    """

    PRIMAL = "primal"
    TANGENT = "tangent"
    COTANGENT = "cotangent"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Mark:
    """One `pipeline_yield` or `task` in the user's code; two marks are equal only if identical.

    Attributes:
        ends_task: True for the end of a `task`; the last such mark starts no stage of its own.
    """

    name: str | None
    source: str
    ends_task: bool = False

    def __repr__(self) -> str:
        return f"{self.name or 'mark'}@{self.source}"


mark_p = core.Primitive("pipeline_yield")
mark_p.multiple_results = True


def pipeline_yield(*values: Any, name: str | None = None) -> Any:
    """Marks the end of a pipeline stage; n marks make n+1 stages.

    The stage holds all operations that the values depend on and no earlier mark needs. The mark is an
    identity: it returns its values, under `jax.jit`, `jax.grad` and `jax.vmap` too.

    Args:
        *values: arrays, or pytrees of arrays, of any dtype.
        name: the stage's name in programs and timelines. Marks of one name are one boundary where none of them
            needs the other: two calls of an encoder have the stages of one. A mark that needs an earlier one of its
            name is a boundary of its own.

    Returns:
        The value, or a tuple if there are several.

    Example:
        >>> def loss(params, x):
        ...     hidden = jnp.tanh(x @ params["first"])
        ...     hidden = jq.pipeline_yield(hidden, name="first")  # stage 0 ends here
        ...     return jnp.mean((hidden @ params["second"]) ** 2)
        >>> params = {"first": jnp.ones((4, 8)), "second": jnp.ones((8, 2))}
        >>> grads = jax.jit(jax.grad(loss))(params, jnp.ones((3, 4)))
        >>> grads["first"].shape
        (4, 8)
    """
    if not values:
        raise TypeError("pipeline_yield() needs at least one value: the one that ends the stage.")
    _check_name(name, "pipeline_yield")
    marked = _bind_mark(values, Mark(name=name, source=user_line()))
    return marked[0] if len(values) == 1 else marked


def task(fn: Callable[..., Any], name: str | None = None) -> Callable[..., Any]:
    """Makes each call of `fn` a stage; n calls make n stages (JaxPP, figure 5, right).

    An alternative to `pipeline_yield`. Operations after the last task join its stage.

    Args:
        fn: a function of arrays; its results end the stage.
        name: the stage's name; by default the function's name.

    Example:
        >>> def loss(params, x):
        ...     hidden = jq.task(lambda x: jnp.tanh(x @ params["first"]), name="first")(x)
        ...     return jq.task(lambda hidden: jnp.mean((hidden @ params["second"]) ** 2), name="second")(hidden)
        >>> params = {"first": jnp.ones((4, 8)), "second": jnp.ones((8, 2))}
        >>> jax.grad(loss)(params, jnp.ones((3, 4)))["second"].shape
        (8, 2)
    """
    _check_name(name, "task")

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        mark = Mark(name=name or getattr(fn, "__name__", None), source=user_line(), ends_task=True)
        return _bind_mark((fn(*args, **kwargs),), mark)[0]

    return call


def _check_name(name: Any, function: str) -> None:
    if name is not None and not (isinstance(name, str) and name):
        raise MarkError(f"{function} at {user_line()} wants a string as name, such as 'encoder'; found {name!r}.")


def _bind_mark(values: tuple[Any, ...], mark: Mark) -> tuple[Any, ...]:
    leaves, tree = jax.tree.flatten(values)
    arrays = [jnp.asarray(leaf) for leaf in leaves]
    return jax.tree.unflatten(tree, mark_p.bind(*arrays, mark=mark, role=MarkRole.PRIMAL))


@mark_p.def_impl
def _run(*values: Any, mark: Mark, role: MarkRole) -> list[Any]:
    del mark, role
    return list(values)


@mark_p.def_abstract_eval
def _types(*avals: Any, mark: Mark, role: MarkRole) -> list[Any]:
    del mark, role
    return list(avals)


def _jvp(primals: Any, tangents: Any, *, mark: Mark, role: MarkRole) -> tuple[list[Any], list[Any]]:
    values = mark_p.bind(*primals, mark=mark, role=role)
    live = [position for position, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero)]
    results = list(tangents)
    if live:
        tangent_role = MarkRole.COTANGENT if role is MarkRole.COTANGENT else MarkRole.TANGENT
        moved = mark_p.bind(*(tangents[position] for position in live), mark=mark, role=tangent_role)
        for position, tangent in zip(live, moved, strict=True):
            results[position] = tangent
    return values, results


def _transpose(cotangents: Any, *values: Any, mark: Mark, role: MarkRole) -> list[Any]:
    # What flows back through a mark that gradients flow back through, in a second derivative, flows forward.
    transposed = MarkRole.TANGENT if role is MarkRole.COTANGENT else MarkRole.COTANGENT
    live = [position for position, cotangent in enumerate(cotangents) if not isinstance(cotangent, ad.Zero)]
    results: list[Any] = [None] * len(values)
    if live:
        moved = mark_p.bind(*(cotangents[position] for position in live), mark=mark, role=transposed)
        for position, cotangent in zip(live, moved, strict=True):
            results[position] = cotangent
    return results


def _batch(values: Any, dims: Any, **params: Any) -> tuple[list[Any], Any]:
    return mark_p.bind(*values, **params), dims


ad.primitive_jvps[mark_p] = _jvp
ad.primitive_transposes[mark_p] = _transpose
batching.primitive_batchers[mark_p] = _batch
mlir.register_lowering(mark_p, lambda context, *values, **params: values)
