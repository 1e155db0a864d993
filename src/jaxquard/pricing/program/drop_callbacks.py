"""Removes callbacks that only print or log.

That is `jax.debug.print`, `jax.debug.callback`, `jax.debug.inspect_array_sharding`, an `io_callback` that returns
nothing. A candidate runs dozens of times on made-up inputs; nobody wants to read that, or to find it in a log. What a
callback returns is needed, so one that returns something stays.
"""

from typing import Any

from jax.extend import core

from jaxquard.ir.jaxpr_tools import close, sub_jaxprs

_CALLBACKS = {"debug_callback", "debug_print", "inspect_sharding", "io_callback"}


def drop_callbacks(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """The same jaxpr without them, in the bodies of loops and calls too; itself if there are none."""
    opened: Any = closed
    return close(_dropped(opened.jaxpr), opened.consts) if opened.jaxpr.effects else closed


def _dropped(jaxpr: Any) -> Any:
    kept = [_without(equation) for equation in jaxpr.eqns if equation.outvars or not _is_callback(equation)]
    return jaxpr.replace(eqns=kept, effects=_effects(kept))


def _is_callback(equation: Any) -> bool:
    return equation.primitive.name in _CALLBACKS


def _without(equation: Any) -> Any:
    bodies: list[Any] = sub_jaxprs(equation)
    if not equation.effects or not bodies:
        return equation
    params = {name: _in_param(value) for name, value in equation.params.items()}
    changed = equation.replace(params=params)
    # Effects of states are numbered by the inputs of the body; those of callbacks are not, and go if no body has them.
    kept: list[Any] = sub_jaxprs(changed)
    left = {effect for body in kept for effect in body.effects}
    gone = {effect for body in bodies for effect in body.effects} - left
    return changed.replace(effects=equation.effects - gone)


def _in_param(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(map(_in_param, value)) if type(value) in (tuple, list) else value
    if isinstance(value, core.ClosedJaxpr):
        return drop_callbacks(value)
    return _dropped(value) if isinstance(value, core.Jaxpr) else value


def _effects(equations: list[Any]) -> Any:
    return frozenset().union(*(equation.effects for equation in equations))
