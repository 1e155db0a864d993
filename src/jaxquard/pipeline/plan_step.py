"""The way of a step through the passes: from a jaxpr to a checked program."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jax.sharding import AbstractMesh

from jaxquard.ir.check_program import check_program
from jaxquard.ir.equation_text import Names
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
from jaxquard.pipeline.own_mesh import own_mesh
from jaxquard.pipeline.own_results import own_results
from jaxquard.pipeline.partner_specs import partner_specs
from jaxquard.pipeline.place_equations import place_equations
from jaxquard.pipeline.placement_text import write_placement
from jaxquard.pipeline.split_stacks import split_stacks
from jaxquard.pipeline.step_text import write_step
from jaxquard.pipeline.task_code import Value
from jaxquard.pipeline.value_specs import value_specs


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is asked of a plan, beside the step.

    Attributes:
        num_actors: how many actors there are.
        donated_args: flat arguments whose buffers the step may take.
        result_of_arg: for each flat argument, the flat result that replaces it in the next step.
        arg_specs: for each flat argument, how it is cut over an actor's mesh; None leaves it to us.
        result_specs: for each flat result, how it shall be; None leaves it to us.
        mesh: the axes of an actor's mesh.
    """

    num_actors: int
    donated_args: tuple[int, ...]
    result_of_arg: tuple[int | None, ...]
    arg_specs: tuple[Spec | None, ...] = ()
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
        records: of the traced step, then one per pass; their texts are empty unless asked for.
    """

    program: Program
    arg_parts: tuple[tuple[int, ...], ...]
    result_parts: tuple[tuple[int, ...], ...]
    records: tuple[PassRecord, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What the passes have made so far; each fills in or replaces one field.

    Attributes:
        names: a value keeps its name through the texts of all passes.
    """

    request: Request
    step: Step
    placement: Any = None
    jobs: Any = ()
    program: Any = None
    names: Names = field(default_factory=Names)

    @property
    def input_specs(self) -> list[Spec]:
        return _part_specs(self.step, self.request)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One pass: the field of the plan that it makes, how, and how to write what it made."""

    field: str
    make: Callable[[_Plan], Any]
    write: Callable[[_Plan], str] = lambda plan: str(plan.program)


def _on_step(make: Callable[[_Plan], Step]) -> Pass:
    return Pass(field="step", make=make, write=lambda plan: write_step(plan.step, names=plan.names))


# All passes, in order.
PASSES: dict[str, Pass] = {
    # shardings mean the actor's own mesh
    "own_mesh": _on_step(lambda plan: own_mesh(plan.step, mesh=plan.request.mesh)),
    # nested jits are opened; marks that cannot end a stage are refused
    "inline_calls": _on_step(lambda plan: inline_calls(plan.step)),
    # schedules that do not fit the mesh are refused
    "check_schedules": _on_step(lambda plan: check_schedules(plan.step, num_actors=plan.request.num_actors)),
    # every result has a buffer of its own
    "own_results": _on_step(lambda plan: own_results(plan.step, donated_args=plan.request.donated_args)),
    # backward checkpoints are opened
    "open_checkpoints": _on_step(lambda plan: open_checkpoints(plan.step)),
    # casts and the like leave the loops
    "hoist_invariants": _on_step(lambda plan: hoist_invariants(plan.step)),
    # stacked leaves exist only in parts
    "split_stacks": _on_step(lambda plan: split_stacks(plan.step)),
    # each operation of a loop gets its stage and phase
    "assign_stages": _on_step(lambda plan: assign_stages(plan.step)),
    # gradients are summed on each actor, and added up after the loop
    "commute_sums": _on_step(lambda plan: commute_sums(plan.step)),
    # state that is cut over a data axis is gathered once, before the loop
    "gather_shards": _on_step(
        lambda plan: gather_shards(plan.step, input_specs=plan.input_specs, mesh=plan.request.mesh)
    ),
    # gradients are reduced over a data axis once, after the loop
    "keep_sums_local": _on_step(
        lambda plan: keep_sums_local(plan.step, input_specs=plan.input_specs, mesh=plan.request.mesh)
    ),
    # what stands outside the loops gets its actors
    "place_equations": Pass(
        field="placement",
        make=lambda plan: place_equations(
            plan.step, result_of_input=_result_of_input(plan.step, plan.request.result_of_arg)
        ),
        write=lambda plan: write_placement(plan.placement, step=plan.step, names=plan.names),
    ),
    # places become tasks: pieces of code with inputs and outputs
    "form_tasks": Pass(
        field="jobs",
        make=lambda plan: form_tasks(plan.step, placement=plan.placement, num_actors=plan.request.num_actors),
        write=lambda plan: write_jobs(plan.jobs, names=plan.names),
    ),
    # the schedule is unrolled, and transfers are inserted
    "build_program": Pass(
        field="program",
        make=lambda plan: build_program(plan.step, placement=plan.placement, jobs=plan.jobs, specs=_value_specs(plan)),
    ),
    # every slot is freed or donated after its last use
    "insert_frees": Pass(
        field="program",
        make=lambda plan: insert_frees(plan.program, donated_args=plan.request.donated_args),
    ),
}


def plan_step(step: Step, *, request: Request, keep_text: bool = False) -> PlannedStep:
    """Runs the passes, checks the program that they make, and returns it."""
    plan = _Plan(request=request, step=step)
    traced = write_step(step, names=plan.names) if keep_text else ""
    records = [PassRecord(name="trace", text=traced, time_s=0.0)]
    for name, pass_ in PASSES.items():
        start_s = time.perf_counter()
        plan = replace(plan, **{pass_.field: pass_.make(plan)})
        spent_s = time.perf_counter() - start_s
        records.append(PassRecord(name=name, text=pass_.write(plan) if keep_text else "", time_s=spent_s))
    check_program(plan.program)
    return PlannedStep(
        program=plan.program,
        arg_parts=plan.step.arg_parts,
        result_parts=plan.step.result_parts,
        records=tuple(records),
    )


def _value_specs(plan: _Plan) -> dict[Value, Spec]:
    inputs, results = _part_specs(plan.step, plan.request)
    sizes = dict(plan.request.mesh.shape) if plan.request.mesh is not None else {}
    return value_specs(plan.step, input_specs=inputs, result_specs=results, axis_sizes=sizes)


def _part_specs(step: Step, request: Request) -> tuple[list[Spec], list[Spec | None]]:
    """The specs of the jaxpr's inputs and outputs: a part is cut as the whole would be."""
    asked: list[Spec | None] = [
        spec
        for parts, spec in zip(step.arg_parts, request.arg_specs or [()] * len(step.arg_parts), strict=True)
        for _ in range(max(1, len(parts)))
    ]
    constants = [()] * (len(step.jaxpr.invars) - len(asked))
    inputs = partner_specs(step, input_specs=[*asked, *constants])
    results = [
        spec
        for parts, spec in zip(step.result_parts, request.result_specs or [None] * len(step.result_parts), strict=True)
        for _ in range(max(1, len(parts)))
    ]
    for position, result in enumerate(_result_of_input(step, request.result_of_arg)):
        if result is not None and results[result] is None:
            results[result] = inputs[position]
    return inputs, results


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
