"""Keeps what some results of a step need: of its loop over microbatches, the forward alone.

    g, l = accumulate_grads[OneFOneB(2)] { ... ; d = pipeline_yield c ; ... l ; ... g } w x ; v = sub w g
    =>
    l = accumulate_grads[Custom(['0F0,0F1', '1F0,1F1'])] { ... ; d = pipeline_yield c ; ... l } w x       (l is wanted)

The marks of the forward and the constraints between them stay, so the stages and shardings are those of the step.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import PartitionSpec

from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, Var, close, make_jaxpr, variables, with_constants_as_inputs
from jaxquard.ir.task import Phase, Task
from jaxquard.pipeline.loop import Loop, loop_p
from jaxquard.pipeline.marks import mark_p
from jaxquard.pipeline.number_marks import is_forward_mark
from jaxquard.planner.forward.partial_step import PartialStep
from jaxquard.planner.step.apply_plan import AppliedStep
from jaxquard.schedules import Custom, Schedule


def keep_forward(applied: AppliedStep, args: Sequence[Any], choose: Callable[[Any], Any]) -> PartialStep:
    """Returns the part of a planned step that makes some of its results, and no gradients.

    Args:
        applied: the step; its first argument is the state.
        args: the types of its arguments.
        choose: takes them from all that the step returns.
    """
    closed, shapes = jax.make_jaxpr(lambda *args: choose(applied.fn(*args)), return_shape=True)(*args)
    jaxpr, constants = with_constants_as_inputs(closed)
    kept = _keep_needed(jaxpr)
    specs = jax.tree.leaves(applied.in_shardings[0], is_leaf=lambda spec: isinstance(spec, PartitionSpec))
    return PartialStep.of_jaxpr(
        kept,
        constants,
        leaves=range(len(specs)),
        out_tree=jax.tree.structure(shapes),
        state_specs=specs,
        more_specs=applied.in_shardings[1:],
    )


def _keep_needed(jaxpr: Jaxpr) -> Jaxpr:
    """Drops what no output needs, in the loop, too; one that is kept has its forward alone."""
    needed = set(variables(jaxpr.outvars))
    kept: list[Equation] = []
    for equation in reversed(jaxpr.eqns):
        if not equation.effects and needed.isdisjoint(equation.outvars):
            continue
        found = _keep_results(equation, needed) if equation.primitive is loop_p else equation
        kept.append(found)
        needed.update(variables(found.invars))
    return make_jaxpr(jaxpr.invars, kept[::-1], jaxpr.outvars)


def _keep_results(equation: Equation, needed: set[Var]) -> Equation:
    """Returns a loop with the results that are needed, and the inputs that these need."""
    loop: Loop = equation.params["loop"]
    results = [place for place, var in enumerate(equation.outvars) if var in needed]
    body = equation.params["body"].jaxpr
    inner = _prune_body(body, [body.outvars[place] for place in results])
    used = {var for one in inner.eqns for var in variables(one.invars)} | set(variables(inner.outvars))
    inputs = [place for place, var in enumerate(body.invars) if var in used or place >= loop.num_constants]
    new_loop = replace(
        loop,
        num_constants=sum(place < loop.num_constants for place in inputs),
        reductions=tuple(loop.reductions[place] for place in results),
        schedule=forward_schedule(loop.schedule, loop.num_microbatches),
        scatters_sums=False,
    )
    pruned = make_jaxpr([body.invars[place] for place in inputs], inner.eqns, inner.outvars)
    return equation.replace(
        invars=[equation.invars[place] for place in inputs],
        outvars=[equation.outvars[place] for place in results],
        params={"body": close(pruned), "loop": new_loop},
    )


def _prune_body(body: Jaxpr, outputs: Sequence[Any]) -> Jaxpr:
    """Drops what no output needs; a mark of the forward stays, with the values that are needed behind it."""
    needed = set(variables(outputs))
    kept: list[Equation] = []
    for equation in reversed(body.eqns):
        found = equation
        if equation.primitive is mark_p:
            found = _keep_values(equation, needed)
            is_needed = is_forward_mark(equation)
        else:
            is_needed = bool(equation.effects)
        if is_needed or not needed.isdisjoint(equation.outvars):
            kept.append(found)
            needed.update(variables(found.invars))
    return make_jaxpr(body.invars, kept[::-1], outputs)


def _keep_values(mark: Equation, needed: set[Var]) -> Equation:
    pairs = [pair for pair in zip(mark.invars, mark.outvars, strict=True) if pair[1] in needed]
    return mark.replace(invars=[value for value, _ in pairs], outvars=[result for _, result in pairs])


def forward_schedule(schedule: Schedule, num_microbatches: int) -> Schedule:
    """Returns the forward tasks of a schedule's stages on its actors: groups of microbatches, stage by stage."""
    return order_forward(
        [schedule.actor_of(stage) for stage in range(schedule.num_stages)], schedule.num_actors, num_microbatches
    )


def order_forward(actor_of: Sequence[int], num_actors: int, num_microbatches: int) -> Schedule:
    """Returns a schedule of forwards alone, given the actor of each stage.

    As many microbatches as there are actors go through an actor's stages, then the next do: so actors with several
    stages wait only at the start.
    """
    rows: list[list[Task]] = [[] for _ in range(num_actors)]
    for start in range(0, num_microbatches, num_actors):
        group = range(start, min(start + num_actors, num_microbatches))
        for stage, actor in enumerate(actor_of):
            rows[actor] += [Task(stage=stage, phase=Phase.FORWARD, microbatch=one) for one in group]
    return Custom(rows)
