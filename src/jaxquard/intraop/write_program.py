"""Writes programs with their shardings: the whole step, or one segment of it, under a choice for every block.

A segment's program is what the step does for it: its forward, its backward, the sums of its gradients and the update
of its state. It takes its state, the values that come from segments before it and the gradients that come from those
after it, and returns what others need.
"""

from collections.abc import Mapping

from jax.sharding import PartitionSpec

from jaxquard.intraop.analyse import Analysis
from jaxquard.intraop.cross_borders import Crossing, Side, find_crossing, reshard_at_borders
from jaxquard.intraop.layouts import Assignment, Layouts, Storage, lay_out
from jaxquard.intraop.phases import Phase
from jaxquard.intraop.segments import Segment
from jaxquard.ir.jaxpr_tools import Jaxpr, Var, close, make_jaxpr
from jaxquard.pricing.program import ShardedProgram

Held = Mapping[Var, PartitionSpec]


def write_segment(
    analysis: Analysis,
    segment: Segment,
    assignment: Assignment,
    *,
    crossing: Crossing,
    storage: Storage = Storage.AS_USED,
) -> ShardedProgram:
    """The program of one segment; `assignment` has a choice for each of its blocks."""
    layouts = lay_out(analysis, assignment, crossing=crossing, segment=segment, storage=storage)
    graph = analysis.graph
    gradients = _gradient_specs(layouts, crossing)
    whole = make_jaxpr(
        crossing.inputs, [graph.equations[position] for position in crossing.positions], crossing.outputs
    )
    jaxpr, copies = reshard_at_borders(
        whole,
        sides=[(segment.number, graph.phases[position]) for position in crossing.positions],
        wanted=_gathered(layouts, crossing, segment),
    )
    state = analysis.graph.state
    names = " ".join("/".join(assignment[block]) for block in segment.blocks)
    kept = "" if storage is Storage.AS_USED else f", {storage.value}"
    return ShardedProgram(
        name=f"segment {segment.number}, {names}{kept}",
        jaxpr=close(jaxpr),
        in_specs=tuple(_in_spec(layouts, var) or PartitionSpec() for var in crossing.inputs),
        out_specs=tuple(gradients.get(var) or layouts.spec(var) for var in crossing.outputs),
        constraints=_positions(jaxpr, _held(analysis, layouts, crossing) | gradients | copies),
        donated=tuple(place for place, var in enumerate(crossing.inputs) if var in state),
    )


def write_step(analysis: Analysis, assignment: Assignment, *, storage: Storage = Storage.AS_USED) -> ShardedProgram:
    """The program of the whole step: that of its segments, with what crosses their borders resharded there."""
    graph = analysis.graph
    step = graph.step
    inputs: dict[Var, PartitionSpec] = {}
    held: dict[Var, PartitionSpec] = {}
    wanted: dict[tuple[Side, Var], PartitionSpec] = {}
    for segment in analysis.segments:
        crossing = find_crossing(analysis, segment)
        layouts = lay_out(analysis, assignment, crossing=crossing, segment=segment, storage=storage)
        held |= _held(analysis, layouts, crossing) | _gradient_specs(layouts, crossing)
        wanted |= _borders(layouts, crossing, segment) | _gathered(layouts, crossing, segment)
        for var in crossing.inputs:
            spec = layouts.stored_spec(var) or layouts.spec(var)
            if spec is not None:
                inputs.setdefault(var, spec)
    of_block = analysis.segment_of_block()
    sides = [(of_block[owner], phase) for owner, phase in zip(analysis.owners, graph.phases, strict=True)]
    jaxpr, copies = reshard_at_borders(step.jaxpr, sides=sides, wanted=wanted)
    in_specs = [inputs.get(var, PartitionSpec()) for var in jaxpr.invars]
    out_specs: list[PartitionSpec | None] = [None] * len(jaxpr.outvars)
    for place, result in enumerate(step.result_of_input):
        if result is not None:
            out_specs[result] = in_specs[place]
    return ShardedProgram(
        name="the step",
        jaxpr=close(jaxpr),
        in_specs=tuple(in_specs),
        out_specs=tuple(out_specs),
        constraints=_positions(jaxpr, held | copies),
        donated=tuple(place for place, result in enumerate(step.result_of_input) if result is not None),
    )


def entry_spec(layouts: Layouts, crossing: Crossing) -> PartitionSpec:
    """How a segment wants the value that enters it."""
    found = None if crossing.entry is None else layouts.entry_spec(crossing.entry)
    return PartitionSpec() if found is None else found


def exit_spec(layouts: Layouts, crossing: Crossing) -> PartitionSpec:
    """How a segment leaves the value that goes out."""
    found = None if crossing.exit is None else layouts.spec(crossing.exit)
    return PartitionSpec() if found is None else found


def _in_spec(layouts: Layouts, var: Var) -> PartitionSpec | None:
    return layouts.stored_spec(var) or layouts.spec(var) or layouts.entry_spec(var)


def _borders(layouts: Layouts, crossing: Crossing, segment: Segment) -> dict[tuple[Side, Var], PartitionSpec]:
    """How a segment wants what comes from its neighbours: a value, and a gradient."""
    wanted: dict[tuple[Side, Var], PartitionSpec] = {}
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        if crossing.entry is not None:
            wanted[(segment.number, phase), crossing.entry] = entry_spec(layouts, crossing)
    if crossing.exit_gradient is not None:
        wanted[(segment.number, Phase.BACKWARD), crossing.exit_gradient] = exit_spec(layouts, crossing)
    return wanted


def _gathered(layouts: Layouts, crossing: Crossing, segment: Segment) -> dict[tuple[Side, Var], PartitionSpec]:
    """State that is kept otherwise than it is used, as forward and backward use it."""
    wanted: dict[tuple[Side, Var], PartitionSpec] = {}
    for var in crossing.inputs:
        used = layouts.spec(var)
        if layouts.stored_spec(var) is not None and used is not None:
            for phase in (Phase.FORWARD, Phase.BACKWARD):
                wanted[(segment.number, phase), var] = used
    return wanted


def _gradient_specs(layouts: Layouts, crossing: Crossing) -> dict[Var, PartitionSpec]:
    """How the gradient that goes out is cut: as the value that came in."""
    return {} if crossing.entry_gradient is None else {crossing.entry_gradient: entry_spec(layouts, crossing)}


def _held(analysis: Analysis, layouts: Layouts, crossing: Crossing) -> dict[Var, PartitionSpec]:
    """Every value whose layout is known, so that the compiler's own propagation decides nothing."""
    made = (var for position in crossing.positions for var in analysis.graph.equations[position].outvars)
    specs = ((var, layouts.spec(var)) for var in made)
    return {var: spec for var, spec in specs if spec is not None}


def _positions(jaxpr: Jaxpr, held: Held) -> tuple[tuple[int, int, PartitionSpec], ...]:
    return tuple(
        (position, output, held[var])
        for position, equation in enumerate(jaxpr.eqns)
        for output, var in enumerate(equation.outvars)
        if var in held
    )
