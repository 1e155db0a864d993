"""Plans a step: runs the passes from a traced jaxpr to a checked program.

`PASSES` is the order of the passes. `plan_step` applies them one by one, checks what each of them made, times it, and
on request writes its text.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from jax.sharding import AbstractMesh

from jaxquard.ir.equation_text import Names
from jaxquard.ir.program import Program
from jaxquard.ir.program.check import check_program
from jaxquard.ir.program.order import order_program
from jaxquard.ir.step import Step
from jaxquard.ir.typed_shardings import typed_context
from jaxquard.pipeline.check_step import check_placement, check_step, check_tasks
from jaxquard.pipeline.passes.assign_stages import assign_stages
from jaxquard.pipeline.passes.check_schedules import check_schedules
from jaxquard.pipeline.passes.commute_sums import commute_sums
from jaxquard.pipeline.passes.gather_shards import gather_shards
from jaxquard.pipeline.passes.hoist_invariants import hoist_invariants
from jaxquard.pipeline.passes.inline_calls import inline_calls
from jaxquard.pipeline.passes.keep_sums_local import keep_sums_local
from jaxquard.pipeline.passes.open_checkpoints import open_checkpoints
from jaxquard.pipeline.passes.own_mesh import own_mesh
from jaxquard.pipeline.passes.own_results import own_results
from jaxquard.pipeline.passes.place_carries import place_carries
from jaxquard.pipeline.passes.split_stacks import split_stacks
from jaxquard.pipeline.specs.argument_specs import ArgumentSpecs, argument_specs
from jaxquard.pipeline.specs.infer_specs import Spec, SpecRules
from jaxquard.pipeline.step_text import write_step
from jaxquard.pipeline.tasks.build_program import build_program
from jaxquard.pipeline.tasks.form_tasks import form_tasks
from jaxquard.pipeline.tasks.insert_frees import insert_frees
from jaxquard.pipeline.tasks.place_equations import StepPlacement, place_equations
from jaxquard.pipeline.tasks.task_code import TaskRows, Value
from jaxquard.pipeline.tasks.tasks_text import write_placement, write_tasks
from jaxquard.pipeline.tasks.value_specs import value_specs


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The input of a plan beside the step.

    Attributes:
        num_actors: the number of actors.
        donated_args: flat arguments whose buffers the step may take.
        result_of_arg: for each flat argument, the flat result that replaces it in the next step.
        arg_specs: for each flat argument, its sharding over an actor's mesh; None leaves it to us.
        result_specs: for each flat result, its sharding; None leaves it to us.
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
    """The output of one pass as text, and the time that the pass took.

    Attributes:
        check_s: seconds that checking its output took, beside `time_s`.
    """

    name: str
    text: str
    time_s: float
    check_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A program, and the parts in which its arguments and results come.

    Attributes:
        records: of the traced step, then one per pass; their texts are empty unless asked for.
    """

    program: Program
    arg_parts: tuple[tuple[int, ...], ...]
    result_parts: tuple[tuple[int, ...], ...]
    records: tuple[PassRecord, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """The outputs of the passes so far; each pass fills in or replaces one field.

    Attributes:
        names: a value keeps its name through the texts of all passes.
    """

    request: Request
    step: Step
    placement: StepPlacement | None = None
    tasks: TaskRows | None = None
    program: Program | None = None
    names: Names = field(default_factory=Names)

    @property
    def result_of_input(self) -> list[int | None]:
        return _result_of_input(self.step, self.request.result_of_arg)

    @property
    def specs(self) -> ArgumentSpecs:
        return argument_specs(
            self.step,
            arg_specs=self.request.arg_specs,
            result_specs=self.request.result_specs,
            result_of_input=self.result_of_input,
            rules=SpecRules.on(self.request.mesh),
        )

    @property
    def value_specs(self) -> dict[Value, Spec]:
        specs, rules = self.specs, SpecRules.on(self.request.mesh)
        return value_specs(self.step, input_specs=specs.inputs, result_specs=specs.results, rules=rules)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One pass over the plan: applies it, checks its output, writes the output as text."""

    apply: Callable[[_Plan], _Plan]
    check: Callable[[_Plan], None]
    write: Callable[[_Plan], str]


def _on_step(rewrite: Callable[[_Plan], Step]) -> Pass:
    def apply(plan: _Plan) -> _Plan:
        step = rewrite(plan)
        return plan if step is plan.step else replace(plan, step=step)

    return Pass(
        apply=apply,
        check=lambda plan: check_step(plan.step),
        write=lambda plan: write_step(plan.step, names=plan.names),
    )


def _place(plan: _Plan) -> _Plan:
    return replace(plan, placement=place_equations(plan.step, result_of_input=plan.result_of_input))


def _check_placed(plan: _Plan) -> None:
    assert plan.placement is not None
    check_placement(plan.placement, step=plan.step, num_actors=plan.request.num_actors)


def _write_placed(plan: _Plan) -> str:
    assert plan.placement is not None
    return write_placement(plan.placement, step=plan.step, names=plan.names)


def _form(plan: _Plan) -> _Plan:
    assert plan.placement is not None
    tasks = form_tasks(plan.step, placement=plan.placement, num_actors=plan.request.num_actors)
    return replace(plan, tasks=tasks)


def _check_formed(plan: _Plan) -> None:
    assert plan.tasks is not None
    check_tasks(plan.tasks, num_actors=plan.request.num_actors)


def _write_formed(plan: _Plan) -> str:
    assert plan.tasks is not None
    return write_tasks(plan.tasks, names=plan.names)


def _build(plan: _Plan) -> _Plan:
    assert plan.placement is not None
    assert plan.tasks is not None
    program = build_program(plan.step, placement=plan.placement, tasks=plan.tasks, specs=plan.value_specs)
    return replace(plan, program=program)


def _free(plan: _Plan) -> _Plan:
    assert plan.program is not None
    return replace(plan, program=insert_frees(plan.program, donated_args=plan.request.donated_args))


def _check_order(plan: _Plan) -> None:
    assert plan.program is not None
    order_program(plan.program)


def _check_program(plan: _Plan) -> None:
    assert plan.program is not None
    check_program(plan.program)


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
    "hoist_invariants": _on_step(
        lambda plan: hoist_invariants(plan.step, input_specs=plan.specs.inputs, mesh=plan.request.mesh)
    ),
    # stacked leaves exist only in parts
    "split_stacks": _on_step(lambda plan: split_stacks(plan.step)),
    # each operation of a loop gets its stage and phase
    "assign_stages": _on_step(lambda plan: assign_stages(plan.step)),
    # each carried value gets the stages that carry it
    "place_carries": _on_step(lambda plan: place_carries(plan.step)),
    # gradients are summed on each actor, and added up after the loop
    "commute_sums": _on_step(lambda plan: commute_sums(plan.step)),
    # state that is sharded over a data axis is gathered once, before the loop
    "gather_shards": _on_step(
        lambda plan: gather_shards(plan.step, input_specs=plan.specs.inputs, mesh=plan.request.mesh)
    ),
    # gradients are reduced over a data axis once, after the loop
    "keep_sums_local": _on_step(
        lambda plan: keep_sums_local(plan.step, input_specs=plan.specs.inputs, mesh=plan.request.mesh)
    ),
    # equations outside the loops get their actors
    "place_equations": Pass(apply=_place, check=_check_placed, write=_write_placed),
    # places become tasks: pieces of code with inputs and outputs
    "form_tasks": Pass(apply=_form, check=_check_formed, write=_write_formed),
    # the schedule is unrolled, and transfers are inserted
    "build_program": Pass(apply=_build, check=_check_order, write=lambda plan: str(plan.program)),
    # every slot is freed or donated after its last use
    "insert_frees": Pass(apply=_free, check=_check_program, write=lambda plan: str(plan.program)),
}


def plan_step(step: Step, *, request: Request, keep_text: bool = False) -> PlannedStep:
    """Runs the passes, checks the output of each, and returns the program."""
    # What a pass writes has explicit axes in its types, as the step has.
    with typed_context(request.mesh):
        return _run_passes(step, request=request, keep_text=keep_text)


def _run_passes(step: Step, *, request: Request, keep_text: bool) -> PlannedStep:
    plan = _Plan(request=request, step=step)
    traced = write_step(step, names=plan.names) if keep_text else ""
    records = [PassRecord(name="trace", text=traced, time_s=0.0)]
    for name, pass_ in PASSES.items():
        start_s = time.perf_counter()
        before, plan = plan, pass_.apply(plan)
        applied_s = time.perf_counter()
        if plan is not before:
            _check(name, plan)
        checked_s = time.perf_counter()
        text = pass_.write(plan) if keep_text else ""
        records.append(PassRecord(name=name, text=text, time_s=applied_s - start_s, check_s=checked_s - applied_s))
    assert plan.program is not None
    return PlannedStep(
        program=plan.program,
        arg_parts=plan.step.arg_parts,
        result_parts=plan.step.result_parts,
        records=tuple(records),
    )


def _check(name: str, plan: _Plan) -> None:
    try:
        PASSES[name].check(plan)
    except AssertionError as error:
        error.add_note(f"found by the check after the pass {name}: this is a mistake of jaxquard, not of the step")
        raise


def _result_of_input(step: Step, result_of_arg: Sequence[int | None]) -> list[int | None]:
    """Returns argument and result pairs as pairs of the jaxpr's inputs and outputs, part by part."""
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
