"""The seconds of a program's calls, from a step that ran: so that the program can be played beside it."""

import statistics
from collections import defaultdict

from jaxquard.errors import ProgramError
from jaxquard.ir.program.instructions import Run
from jaxquard.ir.program.program import Program
from jaxquard.ir.timeline import Timeline, Track


def measured_call_times(program: Program, timeline: Timeline) -> tuple[float, ...]:
    """Returns the median seconds of each call, over all runs of it in a measured timeline.

    Args:
        timeline: of the program's step, such as `step.timeline()` gives.

    Raises:
        ProgramError: if the timeline has no run of a call that the program runs.

    Example:
        >>> from jaxquard.ir.program.parse import parse_program
        >>> from jaxquard.ir.timeline import Span, Timeline, Track
        >>> program = parse_program('''
        ... call 0 f(float32[]) -> (float32[])
        ... actor 0
        ...   input s0 = arg 0 part 0 : float32[]
        ...   run  s1 = 0F0 f#0(s0)
        ...   run  s2 = 0F1 f#0(s0)
        ... ''')
        >>> spans = [
        ...     Span(actor=0, track=Track.COMPUTE, name="0F0", start_s=0.0, end_s=2.0),
        ...     Span(actor=0, track=Track.COMPUTE, name="0F1", start_s=2.0, end_s=5.0),
        ... ]
        >>> jq.simulate.measured_call_times(program, Timeline(num_actors=1, spans=tuple(spans)))
        (2.5,)
    """
    seconds: defaultdict[tuple[int, str], list[float]] = defaultdict(list)
    for span in timeline.spans:
        if span.track is Track.COMPUTE:
            seconds[span.actor, span.name].append(span.time_s)
    found: defaultdict[int, list[float]] = defaultdict(list)
    used: dict[int, str] = {}
    for actor, actor_program in enumerate(program.actors):
        for instruction in actor_program.instructions:
            if isinstance(instruction, Run):
                used.setdefault(instruction.call, f"{instruction.task} on actor {actor}")
                found[instruction.call] += seconds.get((actor, instruction.task), [])
    missing = [task for call, task in used.items() if not found[call]]
    if missing:
        raise ProgramError(
            f"the timeline has no run of {missing[0]}, which the program has. Give the timeline of a step of this "
            "program, made with measure=True."
        )
    return tuple(statistics.median(found[call]) if found[call] else 0.0 for call in range(len(program.calls)))
