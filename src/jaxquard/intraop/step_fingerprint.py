"""Tells one step from another, across processes."""

from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import PartitionSpec

from jaxquard.intraop.step_outline import first_difference, outline
from jaxquard.intraop.traced_step import TracedStep
from jaxquard.ir.jaxpr_tools import close
from jaxquard.pricing.fingerprint import Fingerprints, loose_key
from jaxquard.pricing.program import ShardedProgram

# How the text of a type ends that takes the dtype of what it meets.
WEAK = " (weak)"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFingerprint:
    """What a plan remembers of its step.

    Attributes:
        types: of every argument, by name: shape and dtype.
        key: a hash of all that the step computes; where it calls back into Python, of all but what is called.
        jax_version: with which the step was traced: another one may write the same step with other operations.
        outline: of its operations, to say which differs; "" in plans that were saved without.
    """

    types: tuple[tuple[str, str], ...]
    num_equations: int
    key: str
    jax_version: str = ""
    outline: str = ""


def fingerprint_step(step: TracedStep) -> StepFingerprint:
    """The fingerprint of a traced step."""
    jaxpr = step.jaxpr
    program = ShardedProgram(
        name="",
        jaxpr=close(jaxpr),
        in_specs=(PartitionSpec(),) * len(jaxpr.invars),
        out_specs=(None,) * len(jaxpr.outvars),
    )
    types = [type_text(found) for found in step.arg_types]
    return StepFingerprint(
        types=tuple(zip(step.arg_names, types, strict=True)),
        num_equations=len(jaxpr.eqns),
        key=Fingerprints().key(program) or loose_key(jaxpr),
        jax_version=jax.__version__,
        outline=outline(jaxpr),
    )


def type_text(type_: Any) -> str:
    """`float32[8,16]`; a Python number, which takes the type of what it meets, is `float32[] (weak)`."""
    weak = WEAK if getattr(type_, "weak_type", False) else ""
    return f"{type_.dtype.name}[{','.join(map(str, type_.shape))}]{weak}"


def differences(planned: StepFingerprint, step: TracedStep) -> str:
    """What differs, in a sentence; nothing if the steps are the same."""
    found = fingerprint_step(step)
    before, now = dict(planned.types), dict(found.types)
    for name in [*before, *now]:
        if before.get(name) != now.get(name):
            return f"{name} was {before.get(name, 'not there')} and is {now.get(name, 'not there')}."
    versions = (planned.jax_version, found.jax_version)
    same = planned.num_equations == found.num_equations and planned.key == found.key
    if not same and planned.jax_version and versions[0] != versions[1]:
        return f"its operations are others; but it was traced with JAX {versions[0]}, and this is {versions[1]}."
    if same:
        return ""
    first = first_difference(planned.outline, step.jaxpr) if planned.outline else ""
    return f"{first}." if first else "its arguments are the same, but it computes something else."
