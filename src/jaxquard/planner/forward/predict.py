"""Runs a function of the parameters and a batch, such as one that returns logits, under the plan of a training step.

    logits = fn params batch
    =>
    logits = accumulate_grads[stack, Custom(...)] { b = dot a w ; d = pipeline_yield b ; c = dot d v } w v batch

Parameters stay where they are: an operation that reads one runs on its actor, and all others where their operands are.
Between the shardings of the parameters and of the rows, which are the plan's, the compiler chooses.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxquard.errors import PlanError
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.intraop.step.parts import LeafPart
from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, Var, make_jaxpr, new_var, splice, substitute, variables
from jaxquard.ir.source import source_place
from jaxquard.pipeline.loop import accumulate_grads
from jaxquard.pipeline.stacks import split_stack_p
from jaxquard.planner.forward.keep_forward import order_forward
from jaxquard.planner.forward.partial_step import PartialStep
from jaxquard.planner.record.plan import Plan
from jaxquard.planner.step.apply_plan import AppliedStep, microbatch_inputs, part_loop, plan_mesh
from jaxquard.planner.step.build_loop import build_step
from jaxquard.planner.step.equation_stages import LoopBody, find_body, stage_equations
from jaxquard.planner.step.insert_marks import insert_marks
from jaxquard.planner.step.one_microbatch import OneMicrobatch, open_layers, trace_loop
from jaxquard.planner.step.other_batches import choose_size, with_rows
from jaxquard.planner.step.train_step import count_rows, split_rows
from jaxquard.schedules import AUTO


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class PredictStep:
    """A function of parts of the state and a batch, run on microbatches: `outputs = step(parts, batch)`.

    Attributes:
        fn: `fn(*parts, batch)`; its outputs have the rows of the batch.
        num_microbatches: into which the rows are split, in order.
    """

    fn: Callable[..., Any]
    num_microbatches: int

    def __call__(self, parts: Sequence[Any], batch: Any) -> Any:
        microbatches = split_rows(batch, self.num_microbatches)
        loop = accumulate_grads(lambda microbatch: self.fn(*parts, microbatch), AUTO, "stack")
        return jax.tree.map(_join_rows, loop(microbatches), self.row_dims(parts, batch))

    def row_dims(self, parts: Sequence[Any], batch: Any) -> Any:
        """Returns which dim of each output has the rows: the one that grows with them.

        Raises:
            PlanError: if there is no such dim, or there are several.
        """
        rows = count_rows(batch)
        few, many = (
            jax.eval_shape(self.fn, *parts, with_rows(batch, rows * times // self.num_microbatches)) for times in (1, 2)
        )
        paths = jax.tree_util.tree_leaves_with_path(few)
        found = [_row_dim(leaf, other, path) for (path, leaf), other in zip(paths, jax.tree.leaves(many), strict=True)]
        return jax.tree.unflatten(jax.tree.structure(few), found)


def _row_dim(leaf: Any, other: Any, path: Any) -> int:
    sizes = enumerate(zip(leaf.shape, other.shape, strict=True)) if leaf.ndim == other.ndim else ()
    longer = [dim for dim, (size, more) in sizes if size != more]
    if len(longer) == 1:
        return longer[0]
    name = f"output{jax.tree_util.keystr(path)}"
    raise PlanError(
        f"predict: {name} of the function has shape {tuple(leaf.shape)}, and no one dim of it has the rows of the "
        "batch. Return arrays with a value for each row, and reduce them afterwards; run.evaluate has the loss."
    )


def _join_rows(stacked: Any, row_dim: int) -> Any:
    """Joins the rows of microbatches, which are stacked along a new first dim."""
    parts = jnp.moveaxis(stacked, 0, row_dim)
    shape = parts.shape
    return parts.reshape(*shape[:row_dim], shape[row_dim] * shape[row_dim + 1], *shape[row_dim + 2 :])


def apply_to_function(
    fn: Callable[..., Any],
    args: Sequence[Any],
    plan: Plan,
    *,
    planned: AppliedStep,
    leaves: Sequence[int],
    names: Sequence[str],
    rows: int,
) -> PartialStep:
    """Applies the placement of a plan to a function.

    Args:
        fn: `fn(*parts, batch)`.
        args: the types of its arguments: a tuple of parts of the state, and a batch.
        planned: the training step under the plan.
        leaves: the number in the state of each leaf of the parts.
        names: of those leaves.
        rows: of the plan's batch.

    Raises:
        PlanError: if it reads parameters in another order than the stages that hold them.
    """
    largest = rows // plan.num_microbatches
    size = choose_size(count_rows(args[1]), largest=largest, multiple_of=planned.num_row_shards)
    step = PredictStep(fn=fn, num_microbatches=count_rows(args[1]) // size)
    looped = trace_loop(step, args)
    one = open_layers(replace(looped, state_results=(None,) * len(looped.arg_types)))
    jaxpr, constants = _write(one, plan, _Holders(one, planned, leaves, names), planned, size)
    specs = jax.tree.leaves(planned.in_shardings[0], is_leaf=lambda spec: isinstance(spec, PartitionSpec))
    return PartialStep.of_jaxpr(
        _take_in_parts(jaxpr, [_sizes(planned, leaf, var) for leaf, var in zip(leaves, jaxpr.invars, strict=False)]),
        constants,
        leaves=leaves,
        out_tree=one.out_tree,
        state_specs=[specs[leaf] for leaf in leaves],
        more_specs=(None,),
    )


def _write(
    one: OneMicrobatch, plan: Plan, holders: "_Holders", planned: AppliedStep, size: int
) -> tuple[Jaxpr, tuple[Any, ...]]:
    """Returns the function as a loop with stages, and the constants that are its last inputs."""
    traced = one.traced.jaxpr
    results = [found.value for found in one.results]
    body = find_body(traced, results=results, microbatch=microbatch_inputs(one, traced.invars))
    values = holders.stage_values(body)
    used = sorted(set(values.values())) or [0]
    stages = stage_equations(
        body,
        loop=part_loop(one),
        owner_stages={var: used.index(stage) for var, stage in values.items()},
        marks={},
        num_stages=len(used),
    )
    if not all(stages.activations):
        raise PlanError(
            "predict: the function makes outputs on several actors, and uses nothing of one on the next. "
            "Split it into functions, one for each."
        )
    marked = insert_marks(stages, names=[plan.stages[stage].name for stage in used], source=one.loop.source)
    mesh = plan_mesh(plan)
    spec = PartitionSpec(planned.row_axes) if size % planned.num_row_shards == 0 else PartitionSpec()
    actors = [planned.schedule.actor_of(stage) for stage in used]
    return build_step(
        one,
        replace(body, jaxpr=marked),
        schedule=order_forward(actors, planned.num_actors, one.loop.num_microbatches),
        leaf_specs=[spec] * len(one.loop_leaves) if mesh.size > 1 else None,
        mesh=mesh,
        has_gathered=plan.storage != Storage.ZERO_3.value,
    )


class _Holders:
    """Knows which actors hold each input of a function, and so in which stage each operation can run.

    Attributes:
        inputs: for each input that is a parameter or a part of one, the actors that hold it; none for any.
    """

    def __init__(self, one: OneMicrobatch, planned: AppliedStep, leaves: Sequence[int], names: Sequence[str]) -> None:
        self.actor_of = [planned.schedule.actor_of(stage) for stage in range(planned.schedule.num_stages)]
        self.inputs: dict[Var, frozenset[int]] = {}
        self.names: dict[Var, str] = {}
        for var, part in zip(one.traced.jaxpr.invars, one.traced.inputs, strict=False):
            arg = one.args[part.leaf] if part.leaf < len(one.args) else len(leaves)
            if arg < len(leaves):
                self.names[var] = names[arg] + "".join(f"[{place}]" for place in part.index)
                self.inputs[var] = self._actors(replace(part, leaf=leaves[arg]), planned.readers, self.names[var])

    def _actors(self, part: LeafPart, readers: Mapping[LeafPart, frozenset[int]], name: str) -> frozenset[int]:
        found = [
            frozenset(self.actor_of[stage] for stage in stages)
            for other, stages in readers.items()
            if other.leaf == part.leaf and stages and all(map(int.__eq__, other.index, part.index))
        ]
        held = frozenset.intersection(*found) if found else frozenset[int]()
        if found and not held:
            actors = sorted(set().union(*found))
            raise PlanError(
                f"predict: the function reads {name} whole, but its layers are on actors "
                f"{', '.join(map(str, actors))}. Read it layer by layer in a jax.lax.scan, as the loss does."
            )
        return held

    def stage_values(self, body: LoopBody) -> dict[Var, int]:
        """Returns the stage of what parameters and data make: the first in which all that it needs is at hand.

        Raises:
            PlanError: if an operation reads what is on an earlier stage's actor, or on several.
        """
        held, names = dict(self.inputs), dict(self.names)
        stages: dict[Var, int] = {}
        data = set(body.microbatch)
        for equation in body.jaxpr.eqns:
            operands = variables(equation.invars)
            reads = [var for var in operands if held.get(var)]
            actors = frozenset.intersection(*(held[var] for var in reads)) if reads else frozenset[int]()
            name = " and ".join(names[var] for var in reads)
            if reads and not actors:
                raise PlanError(
                    f"predict: {equation.primitive.name} at {source_place(equation)} reads {name}, which are on "
                    "different actors. Use them one after the other, as the loss does."
                )
            if data.isdisjoint(operands) and not equation.effects:
                held.update(dict.fromkeys(equation.outvars, actors))
                names.update(dict.fromkeys(equation.outvars, name))
                continue
            data.update(equation.outvars)
            before = [stages[var] for var in operands if var in stages]
            if reads or before:
                stage = self._stage(equation, max(before, default=0), actors, name)
                stages.update(dict.fromkeys(equation.outvars, stage))
        return stages

    def _stage(self, equation: Equation, first: int, actors: frozenset[int], name: str) -> int:
        fitting = [stage for stage in range(first, len(self.actor_of)) if not actors or self.actor_of[stage] in actors]
        if fitting:
            return fitting[0]
        raise PlanError(
            f"predict: {equation.primitive.name} at {source_place(equation)} reads {name} of actor "
            f"{', '.join(map(str, sorted(actors)))} behind stage {first}, from which no data flows back. Read "
            "parameters in the order of the loss, or plan one actor: fix={'stages': 1}."
        )


def _sizes(planned: AppliedStep, leaf: int, var: Var) -> tuple[int, ...]:
    """Returns the parts in which the plan's step has an argument; nothing for one that is whole."""
    is_split = any(part.leaf == leaf and part.index for part in planned.readers)
    return (1,) * var.aval.shape[0] if is_split else ()


def _take_in_parts(jaxpr: Jaxpr, sizes: Sequence[tuple[int, ...]]) -> Jaxpr:
    """Returns a jaxpr that joins, where it uses them whole, inputs that come in parts."""
    split = {var for equation in jaxpr.eqns if equation.primitive is split_stack_p for var in equation.invars}
    renamed: dict[Var, Any] = {}
    made: list[Equation] = []
    for var, parts in zip(jaxpr.invars, sizes, strict=False):
        if not parts or var in split:
            continue
        pieces = [new_var(var.aval.update(shape=(size, *var.aval.shape[1:]))) for size in parts]
        joined, (whole,) = splice(lambda *arrays: [jnp.concatenate(arrays)], pieces)
        like = joined[0]
        made.append(like.replace(primitive=split_stack_p, invars=[var], outvars=pieces, params={"sizes": parts}))
        made += joined
        renamed[var] = whole
    equations = [
        equation.replace(invars=[substitute(atom, renamed) for atom in equation.invars]) for equation in jaxpr.eqns
    ]
    return make_jaxpr(jaxpr.invars, [*made, *equations], [substitute(atom, renamed) for atom in jaxpr.outvars])
