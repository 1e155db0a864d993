"""The text of a step between two passes: its equations one a line, each loop with its body below it.

    input   a = arg 0 : float32[8,4]
    input   b = arg 1 : float32[3,2,8]
    c:float32[8,4], d:float32[3] = accumulate_grads OneFOneB(2), 3 microbatches
      any: e:float32[2,8] = b[microbatch]
       0F: f:float32[2,4] = dot_general[dimension_numbers=(([1], [0]), ([], []))] e a
       ...
       0W: c += g
       1F: d[microbatch] = h
    i:float32[8,4] = sub a c
    output  result 0 = i

A loop's constants keep the names that they have outside. Once stages are assigned, each line of a body
begins with the place of the equation; every task that needs a line with `any` slices or recomputes it.
The last lines of a body say where each of its outputs goes. Written for people; it does not parse back.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from jaxquard.ir.equation_text import Names, write_definitions, write_equation, write_type
from jaxquard.ir.jaxpr_tools import Equation
from jaxquard.ir.step import Step
from jaxquard.pipeline.loop import Loop, ReduceOp, loop_p

_REDUCTIONS = {
    ReduceOp.SUM: "{total} += {term}",
    ReduceOp.MEAN: "{total} += {term} / {count}",
    ReduceOp.MAX: "{total} = max {total} {term}",
    ReduceOp.STACK: "{total}[microbatch] = {term}",
    ReduceOp.LAST: "{total} = {term}, of the last microbatch",
    ReduceOp.CARRY: "{total} = {term}, carried to the next microbatch",
}


def write_step(step: Step, *, names: Names | None = None) -> str:
    """The text of a whole step; `names` that earlier texts gave are kept."""
    names = names or Names()
    lines = list(write_inputs(step, names))
    for equation in step.jaxpr.eqns:
        if equation.primitive is loop_p:
            lines.append(write_loop_head(equation, names))
            lines += [f"  {line}" for line in write_body(equation, names)]
        else:
            lines.append(write_equation(equation, names))
    lines += write_outputs(step, names)
    return "\n".join(lines) + "\n"


def write_inputs(step: Step, names: Names) -> Iterator[str]:
    """A line for each input of the jaxpr: an argument, a part of one, or a value that was closed over."""
    origins = [*_parts("arg", step.arg_parts), *(f"value {number}" for number in range(len(step.constants)))]
    for var, origin in zip(step.jaxpr.invars, origins, strict=True):
        kind = "const" if origin.startswith("value") else "input"
        yield f"{kind:7} {names[var]} = {origin} : {write_type(var.aval)}"


def write_outputs(step: Step, names: Names) -> Iterator[str]:
    """A line for each output of the jaxpr."""
    for atom, place in zip(step.jaxpr.outvars, _parts("result", step.result_parts), strict=True):
        yield f"output  {place} = {names[atom]}"


def write_loop_head(equation: Equation, names: Names) -> str:
    """Returns the first line of a loop: its results, its schedule, its microbatches."""
    loop: Loop = equation.params["loop"]
    count = loop.num_microbatches
    made = write_definitions(equation.outvars, names)
    return f"{made} = accumulate_grads {loop.schedule!r}, {count} microbatch{'' if count == 1 else 'es'}"


def write_body(equation: Equation, names: Names) -> Iterator[str]:
    """The body of a loop, its batch leaves first and its reductions last."""
    loop, body = equation.params["loop"], equation.params["body"].jaxpr
    for inner, outer in zip(body.invars[: loop.num_constants], equation.invars, strict=False):
        names.alias(inner, names[outer])
    is_placed = loop.places is not None
    width = max((len(str(place)) for place in (*(loop.places or ()), *loop.result_places)), default=0)

    def with_place(place: Any, line: str) -> str:
        return f"{'any' if place is None else str(place):>{max(width, 3)}}: {line}" if is_placed else line

    carried = slice(loop.num_constants, loop.first_leaf)
    for var, outer in zip(body.invars[carried], equation.invars[carried], strict=True):
        yield with_place(None, f"{names[var]}:{write_type(var.aval)} = carry from {names[outer]}")
    for leaf, outer in zip(body.invars[loop.first_leaf :], equation.invars[loop.first_leaf :], strict=True):
        yield with_place(None, f"{names[leaf]}:{write_type(leaf.aval)} = {names[outer]}[microbatch]")
    for place, inside in zip(loop.places or [None] * len(body.eqns), body.eqns, strict=True):
        yield with_place(place, write_equation(inside, names))
    terms = _write_terms(equation, names)
    yield from map(with_place, loop.result_places or [None] * len(body.outvars), terms)


def _write_terms(equation: Equation, names: Names) -> Iterator[str]:
    loop, body = equation.params["loop"], equation.params["body"].jaxpr
    for atom, target in zip(body.outvars, loop.targets or range(len(body.outvars)), strict=True):
        form = _REDUCTIONS[loop.reductions[target].op]
        yield form.format(total=names[equation.outvars[target]], term=names[atom], count=loop.num_microbatches)


def _parts(word: str, parts: Sequence[tuple[int, ...]]) -> Iterator[str]:
    for number, sizes in enumerate(parts):
        yield from (f"{word} {number} part {part}" for part in range(len(sizes))) if sizes else (f"{word} {number}",)
