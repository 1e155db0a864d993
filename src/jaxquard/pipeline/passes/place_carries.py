"""Decides which stages carry each carried value from microbatch to microbatch.

    b = accumulate_grads[carry k] { any: l = random_split k ; 0F: ... l ... ; 2F: ... l ... }
    =>
    b, c = accumulate_grads[carry k] { any: l = random_split k ; ... ; 0F: b = l ; 2F: c = l }

The stage whose task makes the next value carries it; tasks of other stages get each value from there. A value that
every task can make for itself (a random key, a count) is carried by every stage that reads it, so that none is sent,
and in the phase that reads it. One that no microbatch changes becomes a constant.

A task that reads a carried value waits for the task that made it, of the microbatch before. A schedule that runs the
two the other way round on one actor cannot carry it: a backward that updates what the forward reads, or microbatches
out of order. Where an earlier stage reads what a later one updates, the stages run one after the other: a warning.
"""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from jax import lax

from jaxquard.errors import CarryError, StepWarning
from jaxquard.ir.jaxpr_tools import (
    Equation,
    Var,
    close,
    definitions,
    is_var,
    make_jaxpr,
    new_var,
    splice,
    variables,
)
from jaxquard.ir.step import Step
from jaxquard.ir.task import Phase, Task
from jaxquard.pipeline.body_uses import CarryUse, find_carry_uses
from jaxquard.pipeline.loop import Loop, Place, ReduceOp, loop_p
from jaxquard.pipeline.passes.assign_stages import find_recomputed
from jaxquard.pipeline.passes.carry_homes import CarryHomes
from jaxquard.schedules.dependences import Value, made_by, needs_of


def place_carries(step: Step) -> Step:
    """Places the carried values of every loop.

    Raises:
        CarryError: if a schedule runs a reader of a carried value before the task that makes it.
    """
    equations = [_place(equation) for equation in step.jaxpr.eqns]
    return replace(step, jaxpr=make_jaxpr(step.jaxpr.invars, equations, step.jaxpr.outvars))


def _place(equation: Equation) -> Equation:
    if equation.primitive is not loop_p or not equation.params["loop"].carry_names:
        return equation
    kept = _keep_unchanged(equation)
    costly = _unplaced_costly(kept)
    defined = _define(kept)
    placed = _place_free(defined, costly)
    while (early := _update_early(defined, placed)).params["loop"] != defined.params["loop"]:
        defined, placed = early, _place_free(early, costly)
    _check_order(placed)
    return placed


def _unplaced_costly(equation: Equation) -> frozenset[int]:
    loop, body = equation.params["loop"], equation.params["body"].jaxpr
    recomputed = find_recomputed(body, num_constants=loop.num_constants)
    return frozenset(p for p, place in enumerate(loop.places) if place is None and p not in recomputed)


def _keep_unchanged(equation: Equation) -> Equation:
    """Makes constants of carried inputs that the body returns as they came."""
    loop, body = equation.params["loop"], equation.params["body"].jaxpr
    first, stop = loop.num_constants, loop.first_leaf
    next_of = {r.carried: atom for r, atom in zip(loop.reductions, body.outvars, strict=True)}
    kept = [number for number in range(stop - first) if next_of[number] is not body.invars[first + number]]
    unchanged = [number for number in range(stop - first) if number not in kept]
    order = [*range(first), *(first + number for number in (*unchanged, *kept)), *range(stop, len(body.invars))]
    reductions = [
        r
        if r.carried is None
        else replace(r, carried=kept.index(r.carried))
        if r.carried in kept
        else replace(r, op=ReduceOp.LAST, carried=None)
        for r in loop.reductions
    ]
    new_loop = replace(
        loop,
        num_constants=first + len(unchanged),
        carry_names=tuple(loop.carry_names[number] for number in kept),
        reductions=tuple(reductions),
    )
    jaxpr = make_jaxpr([body.invars[position] for position in order], body.eqns, body.outvars)
    inputs = [equation.invars[position] for position in order]
    return equation.replace(invars=inputs, params={"body": close(jaxpr), "loop": new_loop})


def _define(equation: Equation) -> Equation:
    """Copies carried outputs that no equation of the body makes for them alone; every task can make a copy."""
    loop: Loop = equation.params["loop"]
    body = equation.params["body"].jaxpr
    defined, taken = definitions(body.eqns), set[Var]()
    assert loop.places is not None
    equations, places, outputs = list(body.eqns), list(loop.places), []
    for atom, reduction in zip(body.outvars, loop.reductions, strict=True):
        if reduction.carried is not None:
            if not is_var(atom) or atom not in defined or atom in taken:
                position = defined.get(atom) if is_var(atom) else None
                made, atom = _copy(atom)
                equations.extend(made)
                places.extend([None if position is None else loop.places[position]] * len(made))
            taken.add(atom)
        outputs.append(atom)
    params = {"body": close(make_jaxpr(body.invars, equations, outputs)), "loop": replace(loop, places=tuple(places))}
    return equation.replace(params=params)


def _copy(atom: Any) -> tuple[list[Equation], Any]:
    value = () if is_var(atom) else (np.asarray(atom.val, atom.aval.dtype),)
    made, (copied,) = splice(lambda *array: [lax.optimization_barrier((*array, *value)[0])], variables([atom]))
    return made, copied


def _place_free(equation: Equation, costly: frozenset[int]) -> Equation:
    """Gives each result that every task could make a copy for each of its homes, and the costly equations a place."""
    loop, body = equation.params["loop"], equation.params["body"].jaxpr
    homes = CarryHomes(equation, costly)
    result_places, reductions = list(loop.result_places), list(loop.reductions)
    atoms, results = list(body.outvars), list(equation.outvars)
    for result, (first, *others) in homes.of_result.items():
        result_places[result] = first
        for place in others:
            atoms.append(body.outvars[result])
            results.append(new_var(equation.outvars[result]))
            result_places.append(place)
            reductions.append(loop.reductions[result])
    places = [homes.of_equation.get(position, place) for position, place in enumerate(loop.places)]
    new_loop = replace(loop, places=tuple(places), result_places=tuple(result_places), reductions=tuple(reductions))
    params = {"body": close(make_jaxpr(body.invars, body.eqns, atoms)), "loop": new_loop}
    return equation.replace(outvars=results, params=params)


def _update_early(equation: Equation, placed: Equation) -> Equation:
    """Moves to the input gradient what updates values that an input gradient reads: a W may run after the next I."""
    loop, body = equation.params["loop"], equation.params["body"].jaxpr
    late = {
        body.outvars[use.result]
        for use in find_carry_uses(placed)
        if use.writer.phase is Phase.WEIGHT_GRADIENT
        and any(reader.phase is Phase.INPUT_GRADIENT for reader in use.readers)
        and use.result < len(body.outvars)
    }
    definition = definitions(body.eqns)
    places, waiting = list(loop.places), list(late)
    while waiting:
        position = definition.get(waiting.pop())
        place = None if position is None else places[position]
        if position is not None and (place is None or place.phase is Phase.WEIGHT_GRADIENT):
            places[position] = place and replace(place, phase=Phase.INPUT_GRADIENT)
            waiting.extend(variables(body.eqns[position].invars))
    result_places = [
        places[definition[atom]] or place if atom in late else place
        for atom, place in zip(body.outvars, loop.result_places, strict=True)
    ]
    new_loop = replace(loop, places=tuple(places), result_places=tuple(result_places))
    return equation.replace(params={**equation.params, "loop": new_loop})


def _check_order(equation: Equation) -> None:
    """Refuses a loop whose schedule cannot carry its values.

    Raises:
        CarryError: if a reader of a carried value runs before the task that makes it.
    """
    loop = equation.params["loop"]
    uses = find_carry_uses(equation)
    _find_contradiction(loop, uses)
    for use in uses:
        earlier = [place for place in use.readers if _is_before(place, use.writer)]
        if earlier:
            first = min(earlier, key=lambda place: place.stage)
            warnings.warn(
                f"accumulate_grads at {loop.source}: {use.name} is read by {first} and updated by {use.writer}: each "
                "microbatch waits for the one before, and the stages run one after the other. Update it in the stage "
                "that reads it, or reduce it over the microbatches instead.",
                StepWarning,
                stacklevel=2,
            )
            return


def _is_before(reader: Place, writer: Place) -> bool:
    return reader.phase is Phase.FORWARD and writer.phase is Phase.FORWARD and reader.stage < writer.stage


def _find_contradiction(loop: Loop, uses: list[CarryUse]) -> None:
    """Runs the schedule with the carried values as further dependences; raises at the first that never comes."""
    rows = [list(row) for row in loop.schedule.rows(loop.num_microbatches)]
    made: set[Value] = set()
    positions = [0] * len(rows)
    moved = True
    while moved:
        moved = False
        for actor, row in enumerate(rows):
            while positions[actor] < len(row):
                task = row[positions[actor]]
                needed = (value for value, _ in _carried_needs(task, uses))
                if not made.issuperset((*needs_of(task, num_stages=loop.schedule.num_stages), *needed)):
                    break
                made.update(_made_by(task))
                positions[actor] += 1
                moved = True
    for actor, row in enumerate(rows):
        if positions[actor] < len(row):
            task = row[positions[actor]]
            for value, use in _carried_needs(task, uses):
                if value not in made:
                    raise CarryError(_explain(loop, task, value, use))


def _carried_needs(task: Task, uses: list[CarryUse]) -> Iterator[tuple[Value, CarryUse]]:
    if not task.microbatch:
        return
    for use in uses:
        if any(_is_part(place, task) for place in use.readers):
            yield (use.writer.phase.value, use.writer.stage, task.microbatch - 1), use


def _is_part(place: Place, task: Task) -> bool:
    whole = task.phase is Phase.BACKWARD and place.phase is not Phase.FORWARD
    return place.stage == task.stage and (whole or place.phase is task.phase)


def _made_by(task: Task) -> list[Value]:
    if task.phase is Phase.BACKWARD:
        return [("I", task.stage, task.microbatch), ("W", task.stage, task.microbatch)]
    return [made_by(task)]


def _explain(loop: Loop, task: Task, value: Value, use: CarryUse) -> str:
    letter, stage, microbatch = value
    rows = loop.schedule.rows(loop.num_microbatches)
    is_split = any(str(found) == f"{stage}W{microbatch}" for row in rows for found in row)
    writer = f"{stage}{letter if letter == 'F' or is_split else 'B'}{microbatch}"
    return (
        f"accumulate_grads at {loop.source}: {use.name} goes against the schedule {loop.schedule!r}: {task} reads what "
        f"{writer} updates, but runs before it. {_cure(task, use)}"
    )


def _cure(task: Task, use: CarryUse) -> str:
    if use.writer.phase is not Phase.FORWARD:
        return (
            "A pipeline runs forwards of later microbatches before backwards of earlier ones. Update it in the "
            "forward, read it in the backward alone, or reduce it over the microbatches and update it after the loop."
        )
    if use.writer.stage == task.stage:
        return f"Run the forwards of stage {task.stage} in the order of their microbatches."
    return f"Update it in stage {task.stage}, which reads it, or give every stage an actor of its own."
