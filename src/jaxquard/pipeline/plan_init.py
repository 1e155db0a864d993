"""Plans the program that builds the state: tasks for each actor, with just the leaves that it shall hold.

    actor 0: init { k0, k1 = split key ; w0 = normal k0 }      actor 1: init { k0, k1 = split key ; w1 = normal k1 }
    =>
    both: keys { k0, k1 = split key }      actor 0: init { w0 = normal k0 }      actor 1: init { w1 = normal k1 }

Equal layers draw equal leaves from different keys. Where that spares equations, every actor derives all keys, by one
and the same task, and what draws from them is compiled once for all equal layers (`share_parts`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from jaxquard.ir.jaxpr_tools import (
    Equation,
    Jaxpr,
    Var,
    definitions,
    fingerprint,
    make_jaxpr,
    prune,
    size_bytes,
    variables,
)
from jaxquard.ir.program import Program
from jaxquard.ir.step import Step
from jaxquard.ir.typed_shardings import type_axes
from jaxquard.pipeline.passes.inline_calls import inline_calls
from jaxquard.pipeline.passes.own_results import own_results
from jaxquard.pipeline.passes.split_stacks import split_stacks
from jaxquard.pipeline.specs.infer_specs import Spec
from jaxquard.pipeline.tasks.build_program import build_program
from jaxquard.pipeline.tasks.insert_frees import insert_frees
from jaxquard.pipeline.tasks.place_equations import StepPlacement
from jaxquard.pipeline.tasks.share_parts import share_parts
from jaxquard.pipeline.tasks.task_code import ActorTask, Outer, TaskCode, TaskRows

MIN_SPARED = 50
"""Keys are derived by a task of their own if that spares so many equations: each task costs some compilation."""

_MOST_KEY_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A result to compute.

    Attributes:
        sizes: sizes of its parts along the first dim; empty for a whole array.
        actors: for each part, the actors that shall hold it.
        spec: its sharding over an actor's mesh.
    """

    result: int
    sizes: tuple[int, ...]
    actors: tuple[tuple[int, ...], ...]
    spec: Spec


def plan_init(step: Step, *, wanted: Sequence[Wanted], num_actors: int) -> Program:
    """Returns the program; its results are numbered as `wanted` is."""
    outputs = [step.jaxpr.outvars[request.result] for request in wanted]
    chosen = prune(make_jaxpr(step.jaxpr.invars, step.jaxpr.eqns, outputs))
    step = Step(
        jaxpr=chosen,
        constants=step.constants,
        arg_parts=step.arg_parts,
        result_parts=((),) * len(outputs),
    )
    step = own_results(inline_calls(step), donated_args=())
    step = split_stacks(step, wanted_results=[request.sizes for request in wanted], keep_args_whole=True)
    result_actors = [tuple(actors) for request in wanted for actors in request.actors]
    rows = _make_tasks(step.jaxpr, result_actors, num_actors)
    taken = [{value for task in row for value in task.code.inputs} for row in rows]
    placement = StepPlacement(
        input_actors=tuple(
            tuple(actor for actor in range(num_actors) if Outer(var) in taken[actor]) for var in step.jaxpr.invars
        ),
        equation_actors=(),
        rounds=(),
        regions=(),
        result_actors=tuple(result_actors),
    )
    given = [request.spec for request in wanted for _ in request.actors]
    specs: dict[Any, Spec] = {Outer(var): type_axes(var.aval) for row in rows for var in _boundary(row)}
    specs |= {Outer(var): spec for var, spec in zip(step.jaxpr.outvars, given, strict=True)}
    program = build_program(step, placement=placement, tasks=rows, specs=specs)
    program = insert_frees(program, donated_args=())
    return replace(program, calls=tuple(replace(call, runs_once=True) for call in program.calls))


def _boundary(row: Sequence[ActorTask]) -> list[Var]:
    """The variables that tasks take and give."""
    return [var for task in row for var in (*task.code.jaxpr.invars, *task.code.jaxpr.outvars)]


def _make_tasks(jaxpr: Jaxpr, result_actors: Sequence[tuple[int, ...]], num_actors: int) -> TaskRows:
    """The tasks of each actor: one, or one for the keys and those that draw from them, whichever is less to compile."""
    held: list[list[Var]] = [[] for _ in range(num_actors)]
    for var, actors in zip(jaxpr.outvars, result_actors, strict=True):
        for actor in actors:
            held[actor].append(var)
    whole = [[_task("init", jaxpr.invars, prune(jaxpr, vars_).eqns, vars_)] if vars_ else [] for vars_ in held]
    derived = _find_keys(jaxpr.eqns)
    keys = {var for position in derived for var in jaxpr.eqns[position].outvars}
    draws = [_draw(jaxpr, derived, [var for var in vars_ if var not in keys]) for vars_ in held]
    needed = dict.fromkeys(
        var for row in draws for task in row for var in task.code.jaxpr.invars if var in keys
    ) | dict.fromkeys(var for vars_ in held for var in vars_ if var in keys)
    if not needed or sum(map(bool, held)) < 2:
        return tuple(map(tuple, whole))
    common = _task("keys", jaxpr.invars, prune(jaxpr, list(needed)).eqns, list(needed))
    apart = [[common, *row] if vars_ else [] for row, vars_ in zip(share_parts(draws), held, strict=True)]
    spared = _num_equations(whole) - _num_equations(apart)
    return tuple(map(tuple, apart if spared >= MIN_SPARED else whole))


def _find_keys(equations: Sequence[Equation]) -> set[int]:
    """The equations that derive random keys from keys: cheap, and exact wherever they run."""
    definition = definitions(equations)
    found: set[int] = set()
    for position, equation in enumerate(equations):
        sources = [definition[var] for var in variables(equation.invars) if var in definition]
        is_draw = equation.effects or equation.primitive.name == "random_bits"
        if not is_draw and all(map(_is_key, equation.outvars)) and found.issuperset(sources):
            found.add(position)
    return found


def _is_key(var: Var) -> bool:
    dtype = var.aval.dtype
    is_random = jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key) or dtype == jax.numpy.uint32
    return is_random and size_bytes(var.aval) <= _MOST_KEY_BYTES


def _draw(jaxpr: Jaxpr, derived: set[int], wanted: list[Var]) -> list[ActorTask]:
    """The task that makes values from keys, if there are any."""
    if not wanted:
        return []
    rest = [equation for position, equation in enumerate(jaxpr.eqns) if position not in derived]
    return [_task("init", (), prune(make_jaxpr((), rest, wanted)).eqns, wanted)]


def _task(name: str, inputs: Sequence[Var], equations: Sequence[Equation], outputs: Sequence[Var]) -> ActorTask:
    """A task of these equations; its inputs are those given that are used, in their order, then other ones."""
    defined = {var for equation in equations for var in equation.outvars}
    used = dict.fromkeys(var for equation in equations for var in variables(equation.invars) if var not in defined)
    taken = [*(var for var in inputs if var in used), *(var for var in used if var not in set(inputs))]
    code = TaskCode(
        name=name,
        jaxpr=make_jaxpr(taken, equations, outputs),
        inputs=tuple(map(Outer, taken)),
        outputs=tuple(map(Outer, outputs)),
    )
    return ActorTask(label=name, code=code)


def _num_equations(rows: Sequence[Sequence[ActorTask]]) -> int:
    """The equations of all tasks, of equal ones once."""
    codes = {fingerprint(task.code.jaxpr): len(task.code.jaxpr.eqns) for row in rows for task in row}
    return sum(codes.values())
