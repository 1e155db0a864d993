"""Fingerprints of steps: whether two steps are the same, across processes, and where they differ.

A fingerprint has a short digest of each operation: enough to name the first one that differs.

Learning rates, decays and other float scalars that the step's code has as numbers are literals of its operations. A
plan that does not depend on them is compared by the structure of the step, in which all of them are zeros.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core
from jax.sharding import PartitionSpec

from jaxquard.intraop.step.traced_step import TracedStep
from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, close, is_var
from jaxquard.ir.source import source_place
from jaxquard.pricing.program.fingerprint import Fingerprints, loose_key, operation_texts
from jaxquard.pricing.program.sharded_program import ShardedProgram

# Two operations that differ have the same digest once in 65536 times; another one is then named.
_DIGITS = 4
# The end of the text of a weakly typed argument.
WEAK = " (weak)"


def outline(jaxpr: Jaxpr) -> str:
    """Returns the digests of all operations, one after the other."""
    return "".join(hashlib.sha256(text.encode()).hexdigest()[:_DIGITS] for text in operation_texts(jaxpr))


def first_difference(planned: str, jaxpr: Jaxpr) -> str:
    """Returns the first difference from the step of an outline, as a sentence without its full stop; "" for none."""
    before, now = _digests(planned), _digests(outline(jaxpr))
    num_same = next(
        (at for at, (old, new) in enumerate(zip(before, now, strict=False)) if old != new), min(len(before), len(now))
    )
    counts = f"it had {len(before)} operations and has {len(now)}" if len(before) != len(now) else ""
    if num_same == len(now):
        return counts
    equation = jaxpr.eqns[num_same]
    first = f"the first that differs is {equation.primitive.name} at {source_place(equation)}"
    return f"{counts}; {first}" if counts else f"of its operations {first}"


def _digests(text: str) -> list[str]:
    return [text[at : at + _DIGITS] for at in range(0, len(text), _DIGITS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFingerprint:
    """The identity of a step, as a plan stores it.

    Attributes:
        types: of every argument, by name: shape and dtype.
        key: a hash of all that the step computes; where it calls back into Python, of all but what is called.
        jax_version: with which the step was traced: another one may write the same step with other operations.
        outline: of its operations, to say which differs; "" in plans that were saved without.
        structure: a hash of the same without the values of float scalar literals. Where it is there, it is compared
            instead of the key, and the outline is without these values; "" where they count.
    """

    types: tuple[tuple[str, str], ...]
    key: str
    jax_version: str = ""
    outline: str = ""
    structure: str = ""


def fingerprint_step(step: TracedStep) -> StepFingerprint:
    """Returns the fingerprint of a traced step."""
    return StepFingerprint(
        types=_types(step),
        key=_key(step.jaxpr),
        jax_version=jax.__version__,
        outline=outline(step.jaxpr),
    )


def fingerprint_structure(step: TracedStep) -> StepFingerprint:
    """Returns the fingerprint of a traced step whose float scalar literals may have other values."""
    jaxpr = without_scalar_values(step.jaxpr)
    return StepFingerprint(
        types=_types(step),
        key=_key(step.jaxpr),
        jax_version=jax.__version__,
        outline=outline(jaxpr),
        structure=_key(jaxpr),
    )


def without_scalar_values(jaxpr: Jaxpr) -> Jaxpr:
    """Returns a jaxpr to compare with others: its float scalar literals, also those of inner jaxprs, are zeros."""
    changed: Any = jaxpr
    # Layers that were one body share parameters, and still do.
    params: dict[int, dict[str, Any]] = {}
    return changed.replace(
        eqns=[_without_scalar_values(equation, params) for equation in jaxpr.eqns],
        outvars=[_zero_if_scalar(atom) for atom in jaxpr.outvars],
    )


def _without_scalar_values(equation: Equation, known: dict[int, dict[str, Any]]) -> Equation:
    if id(equation.params) not in known:
        known[id(equation.params)] = {name: _inner_without_values(value) for name, value in equation.params.items()}
    invars = [_zero_if_scalar(atom) for atom in equation.invars]
    return equation.replace(invars=invars, params=known[id(equation.params)])


def _zero_if_scalar(atom: Any) -> Any:
    is_scalar = not is_var(atom) and jnp.shape(atom.val) == () and jnp.issubdtype(atom.aval.dtype, jnp.floating)
    return core.Literal(0.0, atom.aval) if is_scalar else atom


def _inner_without_values(value: Any) -> Any:
    """Returns a parameter of an equation with its jaxprs, alone or in a tuple, without values."""
    inner: Any = value
    if isinstance(value, core.Jaxpr):  # In JAX 0.11 a closed jaxpr too.
        return without_scalar_values(inner)
    if isinstance(value, core.ClosedJaxpr):
        return close(without_scalar_values(inner.jaxpr), value.consts)
    return tuple(map(_inner_without_values, value)) if type(value) is tuple else value


def _types(step: TracedStep) -> tuple[tuple[str, str], ...]:
    return tuple(zip(step.arg_names, map(type_text, step.arg_types), strict=True))


def _key(jaxpr: Jaxpr) -> str:
    return exact_key(jaxpr) or loose_key(jaxpr)


def exact_key(jaxpr: Jaxpr) -> str | None:
    """Returns a hash that two jaxprs share only if they are the same; None where they cannot be distinguished."""
    program = ShardedProgram(
        name="",
        jaxpr=close(jaxpr),
        in_specs=(PartitionSpec(),) * len(jaxpr.invars),
        out_specs=(None,) * len(jaxpr.outvars),
    )
    return Fingerprints().key(program)


def type_text(type_: Any) -> str:
    """Returns a text such as `float32[8,16]`; a Python number, which is weakly typed, is `float32[] (weak)`."""
    weak = WEAK if getattr(type_, "weak_type", False) else ""
    return f"{type_.dtype.name}[{','.join(map(str, type_.shape))}]{weak}"


def differences(planned: StepFingerprint, step: TracedStep) -> str:
    """Returns the first difference as a sentence; "" if the steps are the same."""
    before, now = dict(planned.types), dict(_types(step))
    for name in [*before, *now]:
        if before.get(name) != now.get(name):
            return f"{name} was {before.get(name, 'not there')} and is {now.get(name, 'not there')}."
    jaxpr = without_scalar_values(step.jaxpr) if planned.structure else step.jaxpr
    if _key(jaxpr) == (planned.structure or planned.key):
        return ""
    if planned.jax_version and planned.jax_version != jax.__version__:
        return (
            f"its operations are others; but it was traced with JAX {planned.jax_version}, and this is "
            f"{jax.__version__}."
        )
    first = first_difference(planned.outline, jaxpr) if planned.outline else ""
    return f"{first}." if first else "its arguments are the same, but it computes something else."
