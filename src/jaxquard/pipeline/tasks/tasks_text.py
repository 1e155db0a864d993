"""The texts of the placement and of the tasks.

The placement says where each line of the step outside its loops runs:

    actors  region  round
    0                       input   a = arg 0 : float32[8,4]
    0             0      0  b:bfloat16[8,4] = convert_element_type a
    0,1                     c:float32[8,4] = accumulate_grads OneFOneB(2), 3 microbatches
    0             1      0  d:float32[8,4] = sub a c
    0                       output  result 0 = d

The tasks are the list of each actor, in order, then the code of every task, once:

    actor 0: start 0F0 0F1 0B0 0B1 after.0
             total0 becomes a after 0B1
    actor 1: start 1FB0 1FB1 after.0
             total1 becomes b after 1FB1

    stage0_F(c:float32[2,4,8], microbatch:int32[], d:float32[8,8]) -> (e:float32[4,8])
      ...
      e:float32[4,8] = tanh f

    stage0_B(e:float32[4,8], g:float32[4,8], total0:float32[8,8]) -> (total0:float32[8,8])
      ...
      return total0 = h

A value has the same name in every task that takes or makes it. `microbatch` is the number of the
microbatch, `total0` what the loop has accumulated so far for its first result, `carry0` what it carries for it: as an
input from the microbatch before, as an output to the next.
"""

import textwrap
from collections.abc import Iterator, Sequence

from jaxquard.ir.equation_text import Names, write_equation, write_type
from jaxquard.ir.step import Step
from jaxquard.pipeline.loop import loop_p
from jaxquard.pipeline.step_text import write_inputs, write_loop_head, write_outputs
from jaxquard.pipeline.tasks.place_equations import StepPlacement
from jaxquard.pipeline.tasks.task_code import ActorTask, Carried, Index, TaskCode, Total, Value

_WIDTH = 110


def write_tasks(tasks: Sequence[Sequence[ActorTask]], *, names: Names | None = None) -> str:
    """Returns the text of all actors' tasks; `names` that earlier texts gave are kept."""
    names = names or Names()
    lines: list[str] = []
    for actor, row in enumerate(tasks):
        head = f"actor {actor}: "
        lines += _wrap(head + " ".join(task.label for task in row), indent=len(head))
        for task in row:
            lines += [
                f"{' ' * len(head)}{_name(total, names)} becomes {names[result]} after {task.label}"
                for total, result in task.finished
            ]
    codes = {id(task.code): task.code for row in tasks for task in row}
    for code in codes.values():
        lines += ["", *_write_code(code, names)]
    return "\n".join(lines) + "\n"


def _write_code(code: TaskCode, names: Names) -> Iterator[str]:
    jaxpr = code.jaxpr
    for var, value in zip(jaxpr.invars, code.inputs, strict=True):
        names.alias(var, _name(value, names))
    inputs = ", ".join(f"{names[var]}:{write_type(var.aval)}" for var in jaxpr.invars)
    made = [_name(value, names) for value in code.outputs]
    outputs = ", ".join(f"{name}:{write_type(atom.aval)}" for name, atom in zip(made, jaxpr.outvars, strict=True))
    yield from _wrap(f"{code.name}({inputs}) -> ({outputs})", indent=4)
    for equation in jaxpr.eqns:
        yield "  " + write_equation(equation, names)
    renamed = [f"{name} = {names[atom]}" for name, atom in zip(made, jaxpr.outvars, strict=True) if names[atom] != name]
    if renamed:
        yield "  return " + ", ".join(renamed)


def _wrap(line: str, *, indent: int) -> list[str]:
    return textwrap.wrap(
        line, width=_WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    )


def _name(value: Value, names: Names) -> str:
    if isinstance(value, Index):
        return "microbatch"
    if isinstance(value, Total):
        return f"total{value.target}" if not value.loop else f"total{value.loop}.{value.target}"
    if isinstance(value, Carried):
        return f"carry{value.target}" if not value.loop else f"carry{value.loop}.{value.target}"
    return names[value.var]


def write_placement(placement: StepPlacement, *, step: Step, names: Names | None = None) -> str:
    """The lines of the step, each with its actors; bodies of loops are left out."""
    lines = [("actors", "region", "round", ""), *_placement_lines(placement, step, names or Names())]
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    actors_width, region_width, round_width = widths
    texts = (
        f"{actors:<{actors_width}}  {region:>{region_width}}  {round_:>{round_width}}  {line}".rstrip()
        for actors, region, round_, line in lines
    )
    return "\n".join(texts) + "\n"


def _placement_lines(placement: StepPlacement, step: Step, names: Names) -> Iterator[tuple[str, str, str, str]]:
    for actors, line in zip(placement.input_actors, write_inputs(step, names), strict=True):
        yield _numbers(actors), "", "", line
    for position, equation in enumerate(step.jaxpr.eqns):
        if equation.primitive is loop_p:
            every = range(equation.params["loop"].schedule.num_actors)
            yield _numbers(every), "", "", write_loop_head(equation, names)
            continue
        rounds = placement.rounds[position]
        at = sorted(set(rounds.values())) if len(set(rounds.values())) == 1 else [rounds[a] for a in sorted(rounds)]
        where = _numbers(placement.equation_actors[position])
        yield where, str(placement.regions[position]), _numbers(at), write_equation(equation, names)
    for actors, line in zip(placement.result_actors, write_outputs(step, names), strict=True):
        yield _numbers(actors), "", "", line


def _numbers(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers)) or "-"
