"""Hoists operations that are the same for every microbatch out of the loop (JaxPP, section 5.2.1).

    loop { b = convert_element_type w ; c = dot x b }
    =>
    b = convert_element_type w ; loop { c = dot x b }

The same operation on the same weights in forward and backward is moved as one.

So casts, gathers and norms of weights run once per step. An operation that only rearranges
(transpose, reshape, broadcast, ...) stays in the loop unless something that is moved needs it:
XLA folds it into its user, while moving it would keep another buffer alive. So does a plan's constraint of a small
value to the sharding that it has, such as that of a bias that is broadcast: it costs nothing there, and an array on
every device here. What would grow (the output larger than the inputs) stays too.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from jax.sharding import AbstractMesh, NamedSharding

from jaxquard.ir.jaxpr_tools import (
    Equation,
    Var,
    close,
    copy_equation,
    is_var,
    make_jaxpr,
    operation_key,
    rename,
    size_bytes,
    substitute,
    variables,
)
from jaxquard.ir.operations import REARRANGING, is_small_constraint
from jaxquard.ir.step import Step
from jaxquard.pipeline.loop import loop_p
from jaxquard.pipeline.marks import mark_p
from jaxquard.pipeline.specs.infer_specs import Spec, SpecRules
from jaxquard.pipeline.stacks import split_stack_p


def hoist_invariants(step: Step, *, input_specs: Sequence[Spec], mesh: AbstractMesh | None) -> Step:
    """Moves loop-invariant operations in front of their loops."""
    rules = SpecRules.on(mesh)
    specs = {var: rules.fit_type(spec, var.aval) for var, spec in zip(step.jaxpr.invars, input_specs, strict=True)}
    equations: list[Equation] = []
    for equation in step.jaxpr.eqns:
        equations.extend(_hoist(equation, specs, rules) if equation.primitive is loop_p else [equation])
    return replace(step, jaxpr=make_jaxpr(step.jaxpr.invars, equations, step.jaxpr.outvars))


def _hoist(equation: Equation, specs: dict[Var, Spec], rules: SpecRules) -> list[Equation]:
    body, loop = equation.params["body"].jaxpr, equation.params["loop"]
    constants = body.invars[: loop.num_constants]
    idle = _find_idle(equation, specs, rules) if loop.has_gathered else set()

    def stays(inside: Equation) -> bool:
        return inside.primitive.name in REARRANGING or id(inside) in idle

    moved = _movable(body.eqns, set(constants), stays)
    if not moved:
        return [equation]
    outer: dict[Var, Var] = dict(zip(constants, equation.invars, strict=False))
    before: dict[Any, Equation] = {}
    for inside in moved:
        candidate = copy_equation(inside, rename(inside, outer).invars)
        made = before.setdefault(operation_key(candidate), candidate)
        outer.update(zip(inside.outvars, made.outvars, strict=True))
    moved_ids = {id(inside) for inside in moved}
    kept = [inside for inside in body.eqns if id(inside) not in moved_ids]
    used = {var for inside in kept for var in variables(inside.invars)} | set(variables(body.outvars))
    passed = [var for var in outer if var in used]
    jaxpr = make_jaxpr([*passed, *body.invars[loop.num_constants :]], kept, body.outvars)
    return [
        *before.values(),
        equation.replace(
            invars=[*(substitute(var, outer) for var in passed), *equation.invars[loop.num_constants :]],
            params={"body": close(jaxpr), "loop": replace(loop, num_constants=len(passed))},
        ),
    ]


def _find_idle(equation: Equation, specs: dict[Var, Spec], rules: SpecRules) -> set[int]:
    """Returns the ids of small constraints to the sharding that their operand has.

    Known are the shardings of the step's arguments, and of what is broadcast from them: that moves nothing.
    """
    body, num_constants = equation.params["body"].jaxpr, equation.params["loop"].num_constants
    constants = zip(body.invars[:num_constants], equation.invars, strict=False)
    known = {var: specs[atom] for var, atom in constants if is_var(atom) and atom in specs}
    idle: set[int] = set()
    for inside in body.eqns:
        is_constraint = is_small_constraint(inside) and _names_all(inside.params)
        operand = inside.invars[0] if is_constraint or inside.primitive.name == "broadcast_in_dim" else None
        if not is_var(operand) or operand not in known:
            continue
        rules.follow([inside], known)
        if is_constraint and known[inside.outvars[0]] == known[operand]:
            idle.add(id(inside))
    return idle


def _names_all(constraint: dict[str, Any]) -> bool:
    """Returns True if a constraint names the axes of every dim, and no memory."""
    sharding = constraint["sharding"]
    is_free = bool(constraint["unconstrained_dims"]) or sharding.memory_kind is not None
    return isinstance(sharding, NamedSharding) and not is_free


def _movable(equations: list[Equation], constants: set[Var], stays: Callable[[Equation], bool]) -> list[Equation]:
    """Returns the invariant operations worth moving, and those that they need; constants move only with these."""
    invariant: dict[Var, Equation] = {}
    known, from_nothing = set(constants), set[Var]()
    wanted: list[Equation] = []
    for equation in equations:
        operands = variables(equation.invars)
        if not known.issuperset(operands) or equation.effects or equation.primitive is mark_p:
            continue
        known.update(equation.outvars)
        invariant.update(dict.fromkeys(equation.outvars, equation))
        if from_nothing.issuperset(operands):
            from_nothing.update(equation.outvars)
        elif equation.primitive is split_stack_p or not (stays(equation) or _grows(equation, from_nothing)):
            wanted.append(equation)
    needed: dict[int, Equation] = {}
    while wanted:
        equation = wanted.pop()
        if id(equation) not in needed:
            needed[id(equation)] = equation
            wanted.extend(invariant[var] for var in variables(equation.invars) if var in invariant)
    return [equation for equation in equations if id(equation) in needed]


def _grows(equation: Equation, from_nothing: set[Var]) -> bool:
    before = sum(size_bytes(atom.aval) for atom in equation.invars if not (is_var(atom) and atom in from_nothing))
    return sum(size_bytes(var.aval) for var in equation.outvars) > max(before, 1024)
