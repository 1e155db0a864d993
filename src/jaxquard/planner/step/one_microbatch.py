"""Traces a step with a loop of microbatches, and opens the loop: the step as it is on one microbatch.

    y = mul x 2 ; g = accumulate_grads { a = dot b y } z ; v = sub x g
    =>
    y = mul x 2 ; a = dot b y ; g = accumulated[sum] a ; v = sub x g      (b: a microbatch of z, an input of its own)

The result is a `TracedStep`, which the analysis reads as it reads any other: forward, backward and update in one list,
calls, checkpoints and scans over layers opened. `OneMicrobatch` keeps beside it what it takes to make a loop of it
again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import jax

from jaxquard.errors import PlanError
from jaxquard.intraop.step.find_state import pair_state
from jaxquard.intraop.step.open_calls import open_calls
from jaxquard.intraop.step.open_scans import FlatStep, open_scans
from jaxquard.intraop.step.parts import LeafPart, names_of_parts, pair_parts, whole_leaves
from jaxquard.intraop.step.traced_step import TracedStep, argument_names, trace_jaxpr, types_of
from jaxquard.intraop.step.update_distance import UpdateDistances
from jaxquard.ir.jaxpr_tools import (
    Equation,
    Jaxpr,
    Var,
    is_var,
    make_jaxpr,
    new_var,
    prune,
    rename,
    splice,
    substitute,
    variables,
    with_constants_as_inputs,
)
from jaxquard.ir.step import Step
from jaxquard.pipeline.loop import Loop, loop_p
from jaxquard.pipeline.marks import MarkRole, mark_p
from jaxquard.pipeline.number_marks import number_marks
from jaxquard.pipeline.passes.inline_calls import inline_calls
from jaxquard.pipeline.stacks import offsets, split_stack_p
from jaxquard.planner.step.markers import mark_result, name_marked
from jaxquard.schedules import AUTO


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopResult:
    """A result of the loop, or a part of one.

    Attributes:
        part: which result of the loop, and which part of it.
        value: of all microbatches, in the step on one: what `accumulated` makes.
    """

    part: LeafPart
    value: Var


@dataclass(frozen=True, slots=True, kw_only=True)
class OneMicrobatch:
    """A step on one microbatch, and the step that it was.

    Attributes:
        traced: the step on one microbatch. Its flat arguments are those of the step that the loop, or what stands
            outside of it, needs, and then a microbatch of each leaf that the loop iterates over.
        args: for each flat argument of `traced` that is one of the step, its number there.
        results: of the loop, in `traced`; those that nothing needs are not there.
        whole: the step with its loop, calls opened; its inputs are the flat arguments, then constants.
        constants: values of those last inputs; they are the first constants of `traced`, too.
        loop_position: of the loop's equation in `whole`.
        num_marks: that the user's code has: n marks make n+1 stages.
        in_tree, out_tree: of the step's arguments and results.
    """

    traced: TracedStep
    args: tuple[int, ...]
    results: tuple[LoopResult, ...] = field(repr=False)
    whole: Jaxpr = field(repr=False)
    constants: tuple[Any, ...] = field(repr=False, compare=False)
    loop_position: int
    num_marks: int
    in_tree: Any = field(repr=False, compare=False)
    out_tree: Any = field(repr=False, compare=False)

    @property
    def loop_equation(self) -> Equation:
        """The loop in the step."""
        return self.whole.eqns[self.loop_position]

    @property
    def loop(self) -> Loop:
        """Its parameters."""
        return self.loop_equation.params["loop"]

    @property
    def loop_leaves(self) -> list[Any]:
        """The atoms of the step that the loop iterates over."""
        return self.loop_equation.invars[self.loop.num_constants :]

    @property
    def num_rows(self) -> int:
        """The rows of the batch, if its leaves have any."""
        return max((prod(leaf.aval.shape[:2]) for leaf in self.loop_leaves), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStep:
    """A step with its loop, traced; its scans over layers are not opened, so that it is short.

    Attributes:
        whole: the step, calls opened; its inputs are the flat arguments, then constants.
        loop_position: of the loop's equation in `whole`.
        num_marks: that the user's code has.
        opened: the step on one microbatch.
        opened_constants: values of its last inputs.
        arg_names, arg_types: of the flat arguments.
        state_results: for each flat argument, the result that replaces it in the next step; None if none does.
        in_tree, out_tree: of the step's arguments and results.
    """

    whole: Step
    loop_position: int
    num_marks: int
    opened: Jaxpr = field(repr=False)
    opened_constants: tuple[Any, ...] = field(repr=False, compare=False)
    arg_names: tuple[str, ...] = field(repr=False)
    arg_types: tuple[Any, ...] = field(repr=False)
    state_results: tuple[int | None, ...] = field(repr=False)
    in_tree: Any = field(repr=False, compare=False)
    out_tree: Any = field(repr=False, compare=False)


def trace_loop(step: Callable[..., Any], args: Sequence[Any]) -> LoopStep:
    """Traces a step that has one loop, `accumulate_grads(fn, AUTO)`.

    Args:
        step: a function of pytrees.
        args: its arguments, or their types.

    Raises:
        PlanError: if there is no such loop, or there are several.
        MarkError: if a mark stands where no stage can end.
    """
    types = types_of(args)
    closed, results = trace_jaxpr(step, types)
    arg_types, in_tree = jax.tree.flatten(types)
    result_types, out_tree = jax.tree.flatten(results)
    jaxpr, constants = with_constants_as_inputs(closed)
    parts = ((),) * len(arg_types), ((),) * len(result_types)
    whole = inline_calls(Step(jaxpr=jaxpr, constants=constants, arg_parts=parts[0], result_parts=parts[1]))
    position = _find_loop(whole.jaxpr, step)
    flat, num_marks = _open_loop(whole, position)
    opened, values = open_calls(flat, whole.constants)
    pairs = pair_state(in_tree, arg_types, out_tree, result_types, distances=UpdateDistances(opened)).results
    return LoopStep(
        whole=whole,
        loop_position=position,
        num_marks=num_marks,
        opened=opened,
        opened_constants=values,
        arg_names=tuple(argument_names(args)),
        arg_types=tuple(arg_types),
        state_results=tuple(pairs),
        in_tree=in_tree,
        out_tree=out_tree,
    )


def open_layers(looped: LoopStep) -> OneMicrobatch:
    """Opens the scans over layers of a step with a loop."""
    whole, names, num_results = looped.whole, looped.arg_names, len(looped.whole.result_parts)
    kept = _needed_args(looped.opened, looped.state_results, num_results=num_results)
    opener = _StepParts(
        looped.opened, looped.opened_constants, num_args=len(looped.arg_types), num_results=num_results, kept=kept
    )
    traced, loop_results = opener.trace(
        pairs=looped.state_results,
        arg_names=(*(names[arg] for arg in kept), *_leaf_names(whole.jaxpr, looped.loop_position, names)),
        out_tree=looped.out_tree,
    )
    return OneMicrobatch(
        traced=traced,
        args=kept,
        results=loop_results,
        whole=whole.jaxpr,
        constants=whole.constants,
        loop_position=looped.loop_position,
        num_marks=looped.num_marks,
        in_tree=looped.in_tree,
        out_tree=looped.out_tree,
    )


def trace_microbatch(step: Callable[..., Any], args: Sequence[Any]) -> OneMicrobatch:
    """Traces a step that has one loop, `accumulate_grads(fn, AUTO)`, and opens the loop and its layers.

    Raises:
        PlanError: if there is no such loop, or there are several.
        MarkError: if a mark stands where no stage can end.
    """
    return open_layers(trace_loop(step, args))


def _find_loop(jaxpr: Jaxpr, step: Callable[..., Any]) -> int:
    name = getattr(step, "__name__", type(step).__name__)
    loops = [place for place, equation in enumerate(jaxpr.eqns) if equation.primitive is loop_p]
    if not loops:
        raise PlanError(
            f"{name} has no loop over microbatches, so there is nothing to plan. Write its gradients as "
            "accumulate_grads(fn, jaxquard.schedules.AUTO)(batch), or start from the loss with jaxquard.parallelize."
        )
    where = [jaxpr.eqns[place].params["loop"] for place in loops]
    if len(loops) > 1:
        raise PlanError(
            f"{name} has {len(loops)} loops over microbatches, at {' and '.join(loop.source for loop in where)}. A "
            "plan is for one: join them."
        )
    if where[0].carry_names:
        raise PlanError(
            f"accumulate_grads at {where[0].source} has a carry ({', '.join(where[0].carry_names)}), and a plan cannot "
            "place it. Mark the stages with pipeline_yield and write a schedule such as jaxquard.schedules.OneFOneB(2)."
        )
    if where[0].schedule != AUTO:
        raise PlanError(
            f"accumulate_grads at {where[0].source} has the schedule {where[0].schedule!r}. Leave it to the plan: "
            "accumulate_grads(fn, jaxquard.schedules.AUTO)."
        )
    return loops[0]


def _open_loop(whole: Step, position: int) -> tuple[Jaxpr, int]:
    """Returns the step on one microbatch, with the loop's results after its own, and the number of marks.

    Its inputs are the arguments, a microbatch of each leaf, and the constants.
    """
    jaxpr, num_args = whole.jaxpr, len(whole.arg_parts)
    equation = jaxpr.eqns[position]
    body, loop = equation.params["body"].jaxpr, equation.params["loop"]
    microbatch = [new_var(var) for var in body.invars[loop.num_constants :]]
    inputs = [*equation.invars[: loop.num_constants], *microbatch]
    renamed: dict[Var, Any] = dict(zip(body.invars, inputs, strict=True))
    equations = list(jaxpr.eqns[:position])
    opened, num_marks = _open_marks(body.eqns)
    equations += [rename(inner, renamed) for inner in opened]
    results: list[Var] = []
    for atom, reduction in zip(body.outvars, loop.reductions, strict=True):
        value = substitute(atom, renamed)
        made, result = mark_result(value, reduction, num_microbatches=loop.num_microbatches, like=equation)
        equations.append(made)
        results.append(result)
    after = dict(zip(equation.outvars, results, strict=True))
    equations += [rename(outer, after) for outer in jaxpr.eqns[position + 1 :]]
    outputs = [*(substitute(atom, after) for atom in jaxpr.outvars), *results]
    return make_jaxpr([*jaxpr.invars[:num_args], *microbatch, *jaxpr.invars[num_args:]], equations, outputs), num_marks


def _open_marks(equations: Sequence[Equation]) -> tuple[list[Equation], int]:
    """Replaces marks by names, and splits of stacks by slices; marks that end no stage are dropped."""
    forward, backward = number_marks(equations)
    renamed: dict[Var, Any] = {}
    found: list[Equation] = []
    for position, original in enumerate(equations):
        equation = rename(original, renamed)
        if position in forward:
            found += name_marked(equation, forward[position], MarkRole.PRIMAL)
        elif position in backward:
            found += name_marked(equation, backward[position], MarkRole.COTANGENT)
        elif equation.primitive is mark_p:
            renamed.update(zip(equation.outvars, equation.invars, strict=True))
        elif equation.primitive is split_stack_p:
            made, parts = _slice_stack(equation)
            found += made
            renamed.update(zip(equation.outvars, parts, strict=True))
        else:
            found.append(equation)
    assert renamed.keys().isdisjoint(variables(atom for equation in found for atom in equation.invars))
    return found, len(set(forward.values()))


def _slice_stack(equation: Equation) -> tuple[list[Equation], list[Any]]:
    sizes = equation.params["sizes"]
    bounds = [(start, start + size) for start, size in zip(offsets(sizes), sizes, strict=True)]
    made, parts = splice(
        lambda stack: [jax.lax.slice_in_dim(stack, start, stop) for start, stop in bounds], equation.invars
    )
    return [one.replace(source_info=equation.source_info) for one in made], parts


def _needed_args(opened: Jaxpr, pairs: Sequence[int | None], *, num_results: int) -> tuple[int, ...]:
    """Returns the flat arguments that are state, or that something else than the microbatches is made of."""
    pruned = prune(opened, opened.outvars[:num_results])
    used = {var for equation in pruned.eqns for var in variables(equation.invars)} | set(variables(pruned.outvars))
    return tuple(arg for arg, result in enumerate(pairs) if result is not None or opened.invars[arg] in used)


def _leaf_names(jaxpr: Jaxpr, position: int, names: Sequence[str]) -> list[str]:
    """Returns the names of the microbatches: those of the arguments that they are made of."""
    sources: dict[Var, set[int]] = {var: {arg} for arg, var in enumerate(jaxpr.invars)}
    for equation in jaxpr.eqns[:position]:
        found = set().union(*(sources.get(var, set()) for var in variables(equation.invars)))
        sources.update(dict.fromkeys(equation.outvars, found))
    equation = jaxpr.eqns[position]
    found = []
    for number, atom in enumerate(equation.invars[equation.params["loop"].num_constants :]):
        of_args = [arg for arg in sources.get(atom, ()) if arg < len(names)] if is_var(atom) else []
        found.append(f"a microbatch of {names[of_args[0]]}" if len(of_args) == 1 else f"microbatch leaf {number}")
    return found


class _StepParts:
    """Opens the scans of a step on one microbatch, and separates the results of the loop from its own."""

    def __init__(
        self, jaxpr: Jaxpr, constants: tuple[Any, ...], *, num_args: int, num_results: int, kept: Sequence[int]
    ):
        """Takes the opened step; its constants are its last inputs."""
        num_inputs = len(jaxpr.invars) - len(constants)
        self.num_results, self.kept = num_results, kept
        self.inputs = [*(jaxpr.invars[arg] for arg in kept), *jaxpr.invars[num_args:num_inputs]]
        self.jaxpr = prune(make_jaxpr([*self.inputs, *jaxpr.invars[num_inputs:]], jaxpr.eqns, jaxpr.outvars))
        self.constants = constants

    def trace(
        self, *, pairs: Sequence[int | None], arg_names: tuple[str, ...], out_tree: Any
    ) -> tuple[TracedStep, tuple[LoopResult, ...]]:
        count = len(self.inputs)
        replaced = [*(pairs[arg] for arg in self.kept), *[None] * (count - len(self.kept))]
        flat = open_scans(
            FlatStep(
                jaxpr=self.jaxpr,
                constants=self.constants,
                inputs=whole_leaves(count),
                outputs=whole_leaves(len(self.jaxpr.outvars)),
            ),
            results=replaced,
        )
        num_own = sum(part.leaf < self.num_results for part in flat.outputs)
        jaxpr = self._prune(flat, num_own)
        traced = TracedStep(
            jaxpr=make_jaxpr(jaxpr.invars, jaxpr.eqns, jaxpr.outvars[:num_own]),
            constants=flat.constants,
            arg_names=arg_names,
            arg_types=tuple(_type(var) for var in self.inputs),
            inputs=flat.inputs,
            outputs=flat.outputs[:num_own],
            input_names=(
                *names_of_parts(flat.inputs, arg_names),
                *(f"constant {place}" for place in range(len(flat.constants))),
            ),
            result_of_input=(
                *pair_parts(flat.inputs, flat.outputs, dict(enumerate(replaced))),
                *(None,) * len(flat.constants),
            ),
            in_tree=jax.tree.structure(tuple(range(count))),
            out_tree=out_tree,
        )
        return traced, self._loop_results(flat, jaxpr, first=num_own)

    def _prune(self, flat: FlatStep, num_own: int) -> Jaxpr:
        """Drops results of the loop that nothing needs; of a layer that is a stack again, all parts or none."""
        outputs = flat.jaxpr.outvars
        needed = {var for equation in prune(flat.jaxpr, outputs[:num_own]).eqns for var in equation.outvars}
        pairs = list(zip(flat.outputs, outputs, strict=True))[num_own:]
        layers = {(part.leaf, part.index[:1]) for part, atom in pairs if atom in needed}
        kept = [atom for part, atom in pairs if len(part.index) > 1 and (part.leaf, part.index[:1]) in layers]
        return prune(flat.jaxpr, [*outputs[:num_own], *kept])

    def _loop_results(self, flat: FlatStep, jaxpr: Jaxpr, *, first: int) -> tuple[LoopResult, ...]:
        made = {var for equation in jaxpr.eqns for var in equation.outvars}
        return tuple(
            LoopResult(part=LeafPart(leaf=part.leaf - self.num_results, index=part.index), value=atom)
            for part, atom in zip(flat.outputs[first:], flat.jaxpr.outvars[first:], strict=True)
            if is_var(atom) and atom in made
        )


def _type(var: Var) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype, weak_type=getattr(var.aval, "weak_type", False))
