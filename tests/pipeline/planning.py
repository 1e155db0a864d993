"""Plans a step without a mesh or devices, and runs the program in the interpreter."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from jax.extend import core

from jaxquard.ir import operations
from jaxquard.ir.jaxpr_tools import sub_jaxprs, with_constants_as_inputs
from jaxquard.ir.program import Program, Run, Send
from jaxquard.ir.step import Step
from jaxquard.pipeline.loop import accumulate_grads
from jaxquard.pipeline.plan_step import PlannedStep, Request, plan_step
from jaxquard.pipeline.tasks import place_equations, share_parts
from jaxquard.schedules import Schedule
from tests.pipeline.interpreter import interpret


def scheduled(schedule: Schedule) -> Callable[..., Any]:
    """`accumulate_grads` as the loop of a step (see `oracle`)."""
    return lambda fn, reduce=None, **options: accumulate_grads(fn, schedule, reduce, **options)


def with_schedule(step: Callable[..., Any], schedule: Schedule) -> Callable[..., Any]:
    """The step of its arguments alone, its loops scheduled."""
    return functools.partial(step, scheduled(schedule))


def trace(fn: Callable[..., Any], *args: Any) -> tuple[Step, Any]:
    """A step as the passes take it, and the types of its results."""
    types = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jax.typeof(leaf).dtype), args)
    closed, shapes = jax.make_jaxpr(fn, return_shape=True)(*types)
    jaxpr, constants = with_constants_as_inputs(closed)
    step = Step(
        jaxpr=jaxpr,
        constants=constants,
        arg_parts=((),) * len(jax.tree.leaves(args)),
        result_parts=((),) * len(jaxpr.outvars),
    )
    return step, shapes


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A planned step of some arguments; the first argument is the state that comes first in the results."""

    planned: PlannedStep
    shapes: Any

    @property
    def program(self) -> Program:
        return self.planned.program

    def run(self, *args: Any) -> Any:
        flat = interpret(self.program, jax.tree.leaves(args), self.planned.arg_parts)
        return jax.tree.unflatten(jax.tree.structure(self.shapes), flat)

    def text(self, pass_name: str) -> str:
        return next(record.text for record in self.planned.records if record.name == pass_name)


def plan(
    fn: Callable[..., Any],
    *args: Any,
    num_actors: int,
    has_state: bool = True,
    donates: bool = True,
    keep_text: bool = False,
) -> Planned:
    """Plans `fn(state, batch)`, which returns `(state, ...)`; without state, nothing is paired."""
    step, shapes = trace(fn, *args)
    num_state = len(jax.tree.leaves(args[0])) if has_state else 0
    num_args = len(jax.tree.leaves(args))
    request = Request(
        num_actors=num_actors,
        donated_args=tuple(range(num_state)) if donates else (),
        result_of_arg=(*range(num_state), *[None] * (num_args - num_state)),
    )
    return Planned(planned=plan_step(step, request=request, keep_text=keep_text), shapes=shapes)


@contextlib.contextmanager
def sizes_counting_as(large: bool) -> Iterator[None]:
    """Under it, arrays of more than 4 bytes and parts of any size count as large: the passes treat them differently."""
    if not large:
        yield
        return
    with (
        mock.patch.object(operations, "SMALL_BYTES", 4),
        mock.patch.object(operations, "_SMALL_ELEMENTWISE_BYTES", 4),
        mock.patch.object(place_equations, "SMALL_BYTES", 4),
        mock.patch.object(share_parts, "MIN_EQUATIONS", 1),
    ):
        yield


# Reading programs.


def runs(program: Program, actor: int | None = None) -> Iterator[tuple[int, Run]]:
    for number, actor_program in enumerate(program.actors):
        if actor is None or number == actor:
            for instruction in actor_program.instructions:
                if isinstance(instruction, Run):
                    yield number, instruction


def tasks(program: Program, actor: int) -> list[str]:
    """The tasks of an actor, in order."""
    return [run.task for _, run in runs(program, actor)]


def sends(program: Program) -> Iterator[tuple[int, int, str, str]]:
    """(source, target, type, the task before it, if any) of every value that is sent."""
    for number, actor in enumerate(program.actors):
        before = ""
        for instruction in actor.instructions:
            if isinstance(instruction, Run):
                before = instruction.task
            elif isinstance(instruction, Send):
                for slot in instruction.slots:
                    yield number, instruction.target, str(actor.types[slot]), before


def is_loop_task(name: str) -> bool:
    return name[:1].isdigit()


def count_primitive(jaxpr: Any, name: str) -> int:
    """Counts a primitive in a jaxpr and in the jaxprs that it calls."""
    jaxpr = jaxpr.jaxpr if isinstance(jaxpr, core.ClosedJaxpr) else jaxpr
    return sum(
        (equation.primitive.name == name) + sum(count_primitive(inner, name) for inner in sub_jaxprs(equation))
        for equation in jaxpr.eqns
    )


def count_in_microbatch(program: Program, name: str, microbatch: int = 0) -> int:
    """Counts the runs of a primitive for one microbatch, over all actors."""
    return sum(
        count_primitive(program.calls[run.call].code, name)
        for _, run in runs(program)
        if is_loop_task(run.task) and run.task.lstrip("0123456789").lstrip("FBIW") == str(microbatch)
    )


def count_outside_loops(program: Program, name: str, actors: Sequence[int] | None = None) -> int:
    return sum(
        count_primitive(program.calls[run.call].code, name)
        for actor, run in runs(program)
        if not is_loop_task(run.task) and (actors is None or actor in actors)
    )
