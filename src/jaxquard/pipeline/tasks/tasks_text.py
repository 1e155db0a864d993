"""The text of the tasks: the list of each actor, in order, then the code of every task, once.

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
microbatch, `total0` what the loop has accumulated so far for its first result.
"""

import textwrap
from collections.abc import Iterator, Sequence

from jaxquard.ir.equation_text import Names, write_equation, write_type
from jaxquard.pipeline.tasks.task_code import ActorTask, Index, TaskCode, Total, Value

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
    return names[value.var]
