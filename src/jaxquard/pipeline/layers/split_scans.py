"""Splits a scan over layers after some of its iterations, as `pipeline_scan` does.

c, y = scan[length=4] a x
=>
x0, x1 = split_stack x ; b, y0 = scan[length=2] a x0 ; d = pipeline_yield b ; c, y1 = scan[length=2] d x1
y = join_stack y0 y1
"""

import itertools
from collections.abc import Mapping
from typing import Any

from jax.extend import core

from jaxquard._jax_compat import scan_counts
from jaxquard.ir.jaxpr_tools import Equation, Var, new_var
from jaxquard.pipeline.marks import Mark, MarkRole, mark_p
from jaxquard.pipeline.stacks import join_stack_p, split_stack_p


def split_scan_at(scan: Equation, marks: Mapping[int, Mark]) -> list[Equation]:
    """Returns the equations of a scan with marks.

    Args:
        scan: the equation.
        marks: for some iterations, the mark after each.
    """
    is_reverse, length = scan.params["reverse"], scan.params["length"]
    starts = sorted(number if is_reverse else number + 1 for number in marks)
    sizes = tuple(stop - start for start, stop in itertools.pairwise([0, *starts, length]))
    num_constants, num_carries = scan_counts(scan.params)
    constants, carry = scan.invars[:num_constants], list(scan.invars[num_constants : num_constants + num_carries])
    equations, parts = _split(scan, scan.invars[num_constants + num_carries :], sizes)
    pieces: list[list[Var]] = [[] for _ in sizes]
    order = [*range(len(sizes))][:: -1 if is_reverse else 1]
    for part in order:
        is_last = part == order[-1]
        ends = scan.outvars[:num_carries] if is_last else [new_var(var) for var in scan.outvars[:num_carries]]
        pieces[part] = [_part_var(var, sizes[part]) for var in scan.outvars[num_carries:]]
        inputs = [*constants, *carry, *(stack[part] for stack in parts)]
        params = {**scan.params, "length": sizes[part], "unroll": min(scan.params["unroll"], sizes[part])}
        equations.append(scan.replace(invars=inputs, outvars=[*ends, *pieces[part]], params=params))
        carry = list(ends)
        if not is_last:
            start = sum(sizes[:part]) if is_reverse else sum(sizes[: part + 1]) - 1
            equations.append(new_mark(marks[start], carry, like=scan))
            carry = list(equations[-1].outvars)
    for position, result in enumerate(scan.outvars[num_carries:]):
        of_parts = [made[position] for made in pieces]
        equations.append(new_equation(join_stack_p, of_parts, [result], {"sizes": sizes}, like=scan))
    return equations


def new_mark(mark: Mark, values: list[Any], *, like: Equation) -> Equation:
    """Returns a mark of some values."""
    outputs = [new_var(value) for value in values]
    return new_equation(mark_p, values, outputs, {"mark": mark, "role": MarkRole.PRIMAL}, like=like)


def new_equation(
    primitive: core.Primitive, inputs: list[Any], outputs: list[Var], params: dict[str, Any], *, like: Equation
) -> Equation:
    """Returns an equation with the source of another."""
    build: Any = core.new_jaxpr_eqn
    return build(inputs, outputs, primitive, params, frozenset(), like.source_info, like.ctx)


def _split(scan: Equation, stacks: Any, sizes: tuple[int, ...]) -> tuple[list[Equation], list[list[Var]]]:
    equations: list[Equation] = []
    for stack in stacks:
        parts = [_part_var(stack, size) for size in sizes]
        equations.append(new_equation(split_stack_p, [stack], parts, {"sizes": sizes}, like=scan))
    return equations, [list(equation.outvars) for equation in equations]


def _part_var(stack: Any, size: int) -> Var:
    return new_var(stack.aval.update(shape=(size, *stack.aval.shape[1:])))
