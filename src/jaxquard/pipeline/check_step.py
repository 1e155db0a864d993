"""Checks the step, its placement and its tasks between two passes.

A broken rule is a mistake of the pass before, so it is an AssertionError, which `plan_step` notes the pass on. A user's
mistakes are refused by the passes themselves.
"""

from collections.abc import Iterable

from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, Literal, Var
from jaxquard.ir.step import Step
from jaxquard.pipeline.loop import Loop, ReduceOp, loop_p
from jaxquard.pipeline.tasks.place_equations import StepPlacement
from jaxquard.pipeline.tasks.task_code import Index, TaskRows


def check_step(step: Step) -> None:
    """Checks that the jaxpr is well formed, fits the arguments and results, and that its loops are consistent."""
    jaxpr = step.jaxpr
    check_jaxpr(jaxpr)
    num_results = sum(max(1, len(parts)) for parts in step.result_parts)
    assert len(jaxpr.invars) == step.num_inputs + len(step.constants), "the inputs are the arguments and constants"
    assert len(jaxpr.outvars) == num_results, "the outputs are the results"
    for equation in jaxpr.eqns:
        if equation.primitive is loop_p:
            _check_loop(equation)


def _check_loop(equation: Equation) -> None:
    loop: Loop = equation.params["loop"]
    body = equation.params["body"].jaxpr
    check_jaxpr(body)
    assert len(body.invars) == len(equation.invars), "a body has the inputs of its loop"
    assert 0 <= loop.num_constants <= loop.first_leaf <= len(body.invars), "constants and carry are among the inputs"
    carried = {reduction.carried for reduction in loop.reductions} - {None}
    assert carried == set(range(len(loop.carry_names))), "each carried input has a result"
    for position, (inner, outer) in enumerate(zip(body.invars, equation.invars, strict=True)):
        shape = inner.aval.shape if position < loop.first_leaf else (loop.num_microbatches, *inner.aval.shape)
        assert outer.aval.shape == shape, f"input {position} of a loop is {outer.aval}, of its body {inner.aval}"
        assert outer.aval.dtype == inner.aval.dtype, f"input {position} of a loop changes its dtype"
    assert len(loop.reductions) == len(equation.outvars), "each result of a loop has a reduction"
    targets = loop.targets or tuple(range(len(body.outvars)))
    assert len(targets) == len(body.outvars), "each output of a body has the result that it is added to"
    assert set(targets) == set(range(len(equation.outvars))), "each result of a loop has a term"
    for atom, target in zip(body.outvars, targets, strict=True):
        is_stack = loop.reductions[target].op is ReduceOp.STACK
        shape = (loop.num_microbatches, *atom.aval.shape) if is_stack else atom.aval.shape
        assert equation.outvars[target].aval.shape == shape, f"result {target} of a loop does not fit its term"
    if loop.places is not None:
        assert len(loop.places) == len(body.eqns), "each equation of a staged body has a place, or None"
        assert len(loop.result_places) == len(body.outvars), "each output of a staged body has a place"


def check_placement(placement: StepPlacement, *, step: Step, num_actors: int) -> None:
    """Checks that the placement covers the step, on actors that exist."""
    jaxpr, known = step.jaxpr, set(range(num_actors))
    assert len(placement.input_actors) == len(jaxpr.invars), "each input has its actors"
    assert len(placement.result_actors) == len(jaxpr.outvars), "each output has its actors"
    assert all(placement.result_actors), "each output is on some actor"
    covers = zip(jaxpr.eqns, placement.equation_actors, placement.rounds, placement.regions, strict=True)
    for equation, actors, rounds, _ in covers:
        assert set(actors) == set(rounds), "an equation has a round on each of its actors"
        assert equation.primitive is not loop_p or not actors, "a loop has its own actors"
    every = (*placement.input_actors, *placement.equation_actors, *placement.result_actors)
    assert known.issuperset(actor for actors in every for actor in actors), "the actors exist"


def check_tasks(rows: TaskRows, *, num_actors: int) -> None:
    """Checks that each task's code is well formed and has a value for each input and output."""
    assert len(rows) == num_actors, "each actor has its tasks"
    for code in {id(task.code): task.code for row in rows for task in row}.values():
        check_jaxpr(code.jaxpr)
        assert len(code.inputs) == len(code.jaxpr.invars), f"{code.name} has a value for each input"
        assert len(code.outputs) == len(code.jaxpr.outvars), f"{code.name} has a value for each output"
        assert not any(isinstance(value, Index) for value in code.outputs), f"{code.name} makes no microbatch number"


def check_jaxpr(jaxpr: Jaxpr) -> None:
    """Checks that a jaxpr is well formed: every variable is defined once, before its uses.

    Raises:
        AssertionError: for the first variable that breaks the rule, naming the primitive.
    """
    defined: set[Var] = set()
    _define([*jaxpr.constvars, *jaxpr.invars], defined, None)
    for equation in jaxpr.eqns:
        for atom in equation.invars:
            if not isinstance(atom, Literal) and atom not in defined:
                raise AssertionError(f"{_describe(equation)} uses a variable that nothing before it defines")
        _define(equation.outvars, defined, equation)
    for position, atom in enumerate(jaxpr.outvars):
        if not isinstance(atom, Literal) and atom not in defined:
            raise AssertionError(f"output {position} is a variable that nothing defines")


def _define(variables: list[Var], defined: set[Var], equation: Equation | None) -> None:
    """Adds the outputs of an equation, or the inputs of the jaxpr."""
    before = len(defined)
    defined.update(variables)
    if len(defined) - before != len(variables):
        where = "the inputs define" if equation is None else f"{_describe(equation)} defines"
        raise AssertionError(f"{where} a variable a second time")


def _describe(equation: Equation) -> str:
    return f"a {equation.primitive.name} of type {', '.join(_types(equation.outvars))}"


def _types(variables: Iterable[Var]) -> list[str]:
    return [str(var.aval) for var in variables]
