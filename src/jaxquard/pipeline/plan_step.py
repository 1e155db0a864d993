"""The way of a step through the passes: from a jaxpr to a checked program."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from jax.sharding import AbstractMesh

from jaxquard.ir.check_program import check_program
from jaxquard.ir.program import Program
from jaxquard.ir.step import Step
from jaxquard.pipeline.assign_stages import assign_stages
from jaxquard.pipeline.build_program import build_program
from jaxquard.pipeline.check_schedules import check_schedules
from jaxquard.pipeline.commute_sums import commute_sums
from jaxquard.pipeline.form_tasks import form_tasks
from jaxquard.pipeline.gather_shards import gather_shards
from jaxquard.pipeline.hoist_invariants import hoist_invariants
from jaxquard.pipeline.infer_specs import Spec
from jaxquard.pipeline.inline_calls import inline_calls
from jaxquard.pipeline.insert_frees import insert_frees
from jaxquard.pipeline.jobs_text import write_jobs
from jaxquard.pipeline.keep_sums_local import keep_sums_local
from jaxquard.pipeline.open_checkpoints import open_checkpoints
from jaxquard.pipeline.own_results import own_results
from jaxquard.pipeline.place_equations import place_equations
from jaxquard.pipeline.placement_text import write_placement
from jaxquard.pipeline.split_stacks import split_stacks
from jaxquard.pipeline.step_text import write_step
from jaxquard.pipeline.value_specs import value_specs


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked of a plan, beside the step.

    Attributes:
        num_actors: how many actors there are.
        donated_args: flat arguments whose buffers the step may take.
        result_of_arg: for each flat argument, the flat result that replaces it in the next step.
        arg_specs: for each flat argument, how it is cut over an actor's mesh.
        result_specs: for each flat result, how it shall be; None leaves it to us.
        mesh: the axes of an actor's mesh.
    """

    num_actors: int
    donated_args: tuple[int, ...]
    result_of_arg: tuple[int | None, ...]
    arg_specs: tuple[Spec, ...] = ()
    result_specs: tuple[Spec | None, ...] = ()
    mesh: AbstractMesh | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRecord:
    """What one pass made, and how long it took."""

    name: str
    text: str
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A program and where its arguments and results are cut.

    Attributes:
        records: one per pass; their texts are empty unless asked for.
    """

    program: Program
    arg_parts: tuple[tuple[int, ...], ...]
    result_parts: tuple[tuple[int, ...], ...]
    records: tuple[PassRecord, ...] = field(default=(), repr=False)


# The passes over the step itself, in order.
PASSES: tuple[tuple[str, Callable[..., Step]], ...] = (
    ("inline_calls", inline_calls),  # nested jits are opened; hidden marks are refused
    ("own_results", own_results),  # every result has a buffer of its own
    ("open_checkpoints", open_checkpoints),  # backward checkpoints are opened
    ("hoist_invariants", hoist_invariants),  # casts and the like leave the loops
    ("split_stacks", split_stacks),  # stacked leaves exist only in parts
    ("assign_stages", assign_stages),  # each operation of a loop gets its stage and phase
    ("commute_sums", commute_sums),  # gradients are summed on each actor, and added up after
)


def plan_step(step: Step, *, request: Request, keep_text: bool = False) -> PlannedStep:
    """Runs the passes, checks what they make, and returns the program."""
    records: list[PassRecord] = []

    def run(name: str, pass_: Callable[[], Any], write: Callable[[Any], str] = str) -> Any:
        start_s = time.perf_counter()
        made = pass_()
        spent_s = time.perf_counter() - start_s
        records.append(PassRecord(name=name, text=write(made) if keep_text else "", time_s=spent_s))
        return made

    for name, pass_ in PASSES:
        extra = {"donated_args": request.donated_args} if pass_ is own_results else {}
        step = run(name, partial(pass_, step, **extra), write_step)
        if pass_ is inline_calls:
            check_schedules(step, num_actors=request.num_actors)
    input_specs, result_specs = _part_specs(step, request)
    gather = partial(gather_shards, step, input_specs=input_specs, mesh=request.mesh)
    step = run("gather_shards", gather, write_step)
    keep = partial(keep_sums_local, step, input_specs=input_specs, mesh=request.mesh)
    step = run("keep_sums_local", keep, write_step)
    pairs = _result_of_input(step, request.result_of_arg)
    place = partial(place_equations, step, result_of_input=pairs)
    placement = run("place_equations", place, partial(write_placement, step=step))
    form = partial(form_tasks, step, placement=placement, num_actors=request.num_actors)
    jobs = run("form_tasks", form, write_jobs)
    specs = value_specs(
        step,
        input_specs=input_specs,
        result_specs=result_specs,
        axis_sizes=dict(request.mesh.shape) if request.mesh is not None else {},
    )
    program = run("build_program", lambda: build_program(step, placement=placement, jobs=jobs, specs=specs))
    program = run("insert_frees", lambda: insert_frees(program, donated_args=request.donated_args))
    run("check_program", lambda: check_program(program), lambda _: "")
    return PlannedStep(
        program=program,
        arg_parts=step.arg_parts,
        result_parts=step.result_parts,
        records=tuple(records),
    )


def _part_specs(step: Step, request: Request) -> tuple[list[Spec], list[Spec | None]]:
    """The specs of the jaxpr's inputs and outputs: a part is cut as the whole would be."""
    inputs = [
        spec
        for parts, spec in zip(step.arg_parts, request.arg_specs or [()] * len(step.arg_parts), strict=True)
        for _ in range(max(1, len(parts)))
    ]
    results = [
        spec
        for parts, spec in zip(step.result_parts, request.result_specs or [None] * len(step.result_parts), strict=True)
        for _ in range(max(1, len(parts)))
    ]
    return [*inputs, *[()] * (len(step.jaxpr.invars) - len(inputs))], results


def _result_of_input(step: Step, result_of_arg: Sequence[int | None]) -> list[int | None]:
    """Argument and result pairs, as pairs of the jaxpr's inputs and outputs, part by part."""
    first_output, count = [], 0
    for parts in step.result_parts:
        first_output.append(count)
        count += max(1, len(parts))
    pairs: list[int | None] = []
    for arg, parts in enumerate(step.arg_parts):
        result = result_of_arg[arg]
        matches = result is not None and step.result_parts[result] == parts
        for part in range(max(1, len(parts))):
            pairs.append(first_output[result] + part if matches and result is not None else None)
    return pairs + [None] * (len(step.jaxpr.invars) - len(pairs))
