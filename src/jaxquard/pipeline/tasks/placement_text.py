"""The text of a placement: where each line of the step outside its loops runs.

actors  region  round
0                       input   a = arg 0 : float32[8,4]
0             0      0  b:bfloat16[8,4] = convert_element_type a
0,1                     c:float32[8,4] = accumulate_grads OneFOneB(2), 3 microbatches
0             1      0  d:float32[8,4] = sub a c
0                       output  result 0 = d
"""

from collections.abc import Iterator, Sequence

from jaxquard.ir.equation_text import Names, write_equation
from jaxquard.ir.step import Step
from jaxquard.pipeline.loop import loop_p
from jaxquard.pipeline.step_text import write_inputs, write_loop_head, write_outputs
from jaxquard.pipeline.tasks.place_equations import StepPlacement


def write_placement(placement: StepPlacement, *, step: Step, names: Names | None = None) -> str:
    """The lines of the step, each with its actors; bodies of loops are left out."""
    lines = [("actors", "region", "round", ""), *_lines(placement, step, names or Names())]
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    actors_width, region_width, round_width = widths
    texts = (
        f"{actors:<{actors_width}}  {region:>{region_width}}  {round_:>{round_width}}  {line}".rstrip()
        for actors, region, round_, line in lines
    )
    return "\n".join(texts) + "\n"


def _lines(placement: StepPlacement, step: Step, names: Names) -> Iterator[tuple[str, str, str, str]]:
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
