"""Plans the program that builds the state: one task per actor, with just the leaves that it shall hold."""

from collections.abc import Sequence
from dataclasses import dataclass

from jaxquard.ir.array_type import ArrayType
from jaxquard.ir.jaxpr_tools import close, fingerprint, make_jaxpr, prune, variables
from jaxquard.ir.program import ActorProgram, Call, Constant, Input, Output, Program, Run
from jaxquard.ir.step import Step
from jaxquard.ir.typed_shardings import type_axes
from jaxquard.pipeline.passes.inline_calls import inline_calls
from jaxquard.pipeline.passes.own_results import own_results
from jaxquard.pipeline.passes.split_stacks import split_stacks
from jaxquard.pipeline.specs.infer_specs import Spec


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
    calls: dict[object, tuple[int, Call]] = {}
    actors = tuple(_actor(step, wanted, actor, calls) for actor in range(num_actors))
    return Program(calls=tuple(call for _, call in calls.values()), actors=actors, constants=step.constants)


def _actor(step: Step, wanted: Sequence[Wanted], actor: int, calls: dict[object, tuple[int, Call]]) -> ActorProgram:
    held = []
    position = 0
    for result, request in enumerate(wanted):
        for part, actors in enumerate(request.actors):
            if actor in actors:
                held.append((position, result, part, request.spec))
            position += 1
    if not held:
        return ActorProgram(types=())
    jaxpr = prune(step.jaxpr, [step.jaxpr.outvars[position] for position, *_ in held])
    used = {var for equation in jaxpr.eqns for var in variables(equation.invars)} | set(variables(jaxpr.outvars))
    inputs = [(position, var) for position, var in enumerate(jaxpr.invars) if var in used]
    jaxpr = make_jaxpr([var for _, var in inputs], jaxpr.eqns, jaxpr.outvars)
    in_types = tuple(
        ArrayType(dtype=str(v.aval.dtype), shape=tuple(v.aval.shape), spec=type_axes(v.aval)) for _, v in inputs
    )
    out_types = tuple(
        ArrayType(dtype=str(atom.aval.dtype), shape=tuple(atom.aval.shape), spec=entry[3])
        for atom, entry in zip(jaxpr.outvars, held, strict=True)
    )
    key = (fingerprint(jaxpr), in_types, out_types)
    call = Call(name="init", inputs=in_types, outputs=out_types, code=close(jaxpr), runs_once=True)
    number, _ = calls.setdefault(key, (len(calls), call))
    num_args = len(step.arg_parts)
    slots = range(len(inputs))
    made = tuple(range(len(inputs), len(inputs) + len(held)))
    return ActorProgram(
        types=(*in_types, *out_types),
        inputs=tuple(Input(slot=s, arg=p) for s, (p, _) in enumerate(inputs) if p < num_args),
        constants=tuple(Constant(slot=s, value=p - num_args) for s, (p, _) in enumerate(inputs) if p >= num_args),
        instructions=(Run(task="init", call=number, inputs=tuple(slots), outputs=made),),
        outputs=tuple(
            Output(slot=slot, result=result, part=part) for slot, (_, result, part, _) in zip(made, held, strict=True)
        ),
    )
