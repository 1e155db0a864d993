"""Writes programs with their shardings: the whole step, or one segment of it, under a choice for every block.

A segment's program is what the step does for it: its forward, its backward, the sums of its gradients and the update
of its state. It takes its state, the values that come from segments before it and the gradients that come from those
after it, and returns what others need.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from jax.sharding import PartitionSpec

from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.segments.boundary_values import Side, Traveller
from jaxquard.intraop.segments.find_segments import Segment
from jaxquard.intraop.shardings.boundaries import role_of
from jaxquard.intraop.shardings.crossings import Copies, Crossing, Way, copy_at_borders, find_crossing
from jaxquard.intraop.shardings.layouts import Assignment, Layouts, Storage, lay_out
from jaxquard.intraop.step.phases import Phase
from jaxquard.ir.jaxpr_tools import Jaxpr, Var, close, make_jaxpr
from jaxquard.pricing.program.sharded_program import ShardedProgram


def write_segments(
    analysis: Analysis, segments: Sequence[Segment], assignment: Assignment, *, storage: Storage = Storage.AS_USED
) -> ShardedProgram:
    """The program of one segment, or of neighbours; `assignment` has a choice for each of their blocks."""
    graph = analysis.graph
    parts = _Parts(analysis, segments, assignment, storage)
    crossing = parts.whole
    jaxpr, constraints = parts.reshard(
        tuple(segments),
        crossing.positions,
        lambda: make_jaxpr(crossing.inputs, [graph.equations[one] for one in crossing.positions], crossing.outputs),
    )
    return ShardedProgram(
        name=name_segments(segments, assignment, storage=storage),
        jaxpr=jaxpr,
        in_specs=tuple(parts.in_spec(var) for var in crossing.inputs),
        out_specs=tuple(parts.out_spec(var) for var in crossing.outputs),
        constraints=constraints,
        donated=tuple(place for place, var in enumerate(crossing.inputs) if var in graph.state),
    )


def name_segments(segments: Sequence[Segment], assignment: Assignment, *, storage: Storage) -> str:
    """`segment 0 and 1: columns, rows contracted, zero 1`."""
    numbers = " and ".join(str(segment.number) for segment in segments)
    names = ", ".join(" ".join("/".join(assignment[block]) for block in segment.blocks) for segment in segments)
    kept = "" if storage is Storage.AS_USED else f", {storage.value}"
    return f"segment {numbers}: {names}{kept}"


def write_step(analysis: Analysis, assignment: Assignment, *, storage: Storage = Storage.AS_USED) -> ShardedProgram:
    """The program of the whole step: that of its segments, with what crosses their borders resharded there."""
    step = analysis.graph.step
    parts = _Parts(analysis, analysis.segments, assignment, storage)
    jaxpr, constraints = parts.reshard("the step", range(len(step.jaxpr.eqns)), lambda: step.jaxpr)
    in_specs = [parts.in_spec(var) for var in step.jaxpr.invars]
    out_specs: list[PartitionSpec | None] = [None] * len(step.jaxpr.outvars)
    for place, result in enumerate(step.result_of_input):
        if result is not None:
            out_specs[result] = in_specs[place]
    return ShardedProgram(
        name="the step",
        jaxpr=jaxpr,
        in_specs=tuple(in_specs),
        out_specs=tuple(out_specs),
        constraints=constraints,
        donated=tuple(place for place, result in enumerate(step.result_of_input) if result is not None),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copied:
    """A jaxpr with copies at borders.

    Attributes:
        results: (equation, output, variable) of all that is made in it.
    """

    jaxpr: Any
    copies: Copies
    results: tuple[tuple[int, int, Var], ...]


class _Parts:
    """The layouts of some segments, put together.

    Attributes:
        whole: what crosses the borders of all of them together.
        held: how values are held.
        ways: how each segment gets what comes from others, and state that is kept otherwise.
    """

    def __init__(self, analysis: Analysis, segments: Sequence[Segment], assignment: Assignment, storage: Storage):
        self.analysis = analysis
        blocks = tuple(block for segment in segments for block in segment.blocks)
        self.whole = find_crossing(analysis, Segment(number=segments[0].number, kind=segments[0].kind, blocks=blocks))
        self.held: dict[Var, PartitionSpec] = {}
        self.ways: dict[tuple[Side, Var], Way] = {}
        self._inputs: dict[Var, PartitionSpec] = {}
        self._layouts: dict[int, tuple[Layouts, Crossing]] = {}
        for segment in segments:
            crossing = find_crossing(analysis, segment)
            layouts = lay_out(analysis, assignment, segment=segment, storage=storage)
            self._layouts[segment.number] = layouts, crossing
            self.held |= _held(analysis, layouts, crossing)
            self.ways |= _gathered(layouts, crossing, segment)
            for var in crossing.inputs:
                stored = layouts.stored_spec(var)
                spec = layouts.entry_spec(var) if stored is None else stored
                if spec is not None:
                    self._inputs.setdefault(var, spec)
        for traveller in analysis.travellers.values():
            for side in traveller.uses:
                if side[0] in self._layouts:
                    self.ways[side, traveller.var] = self._way(traveller, side)

    def _way(self, traveller: Traveller, side: Side) -> Way:
        """How a value comes to where it is used, through these segments."""
        segment, phase = side
        if traveller.is_saved and (segment, Phase.FORWARD) in traveller.uses:
            phase = Phase.FORWARD
        used = {place for place, _ in traveller.uses}
        way = []
        for place in traveller.segments_to(segment):
            # From outside of these segments a value comes as the first one that uses it wants it.
            is_here = bool(way) or traveller.maker in self._layouts or place in used
            if place in self._layouts and is_here:
                layouts, crossing = self._layouts[place]
                spec = role_of(traveller, place).spec(layouts, crossing, traveller.var)
                if spec is not None:
                    way.append(((place, phase), spec))
        return tuple(way)

    def reshard(
        self, name: Hashable, positions: Sequence[int], make: Callable[[], Jaxpr]
    ) -> tuple[Any, tuple[tuple[int, int, PartitionSpec], ...]]:
        """The jaxpr of equations with what crosses borders resharded there, and how its values are held.

        Strategies that need the same copies share one jaxpr, so that it is made, and walked over for a key, once.
        """
        stops = {use: tuple(stop for stop, _ in way) for use, way in self.ways.items()}
        key = ("copied", name, frozenset(stops.items()))
        memo = self.analysis.memo
        if key not in memo:
            jaxpr, copies = copy_at_borders(make(), sides=self._sides(positions), stops=stops)
            memo[key] = _Copied(jaxpr=close(jaxpr), copies=copies, results=_results(jaxpr))
        found: _Copied = memo[key]
        held = dict(self.held)
        for (_, var), way in self.ways.items():
            held |= {found.copies[stop, var]: spec for stop, spec in way if (stop, var) in found.copies}
        constraints = ((equation, output, held.get(var)) for equation, output, var in found.results)
        return found.jaxpr, tuple(
            (equation, output, spec) for equation, output, spec in constraints if spec is not None
        )

    def _sides(self, positions: Sequence[int]) -> list[Side]:
        """The segment and the phase of equations."""
        of_block = self.analysis.segment_of_block()
        owners, phases = self.analysis.owners, self.analysis.graph.phases
        return [(of_block[owners[position]], phases[position]) for position in positions]

    def in_spec(self, var: Var) -> PartitionSpec:
        """How an input comes."""
        return self._inputs.get(var, PartitionSpec())

    def out_spec(self, var: Var) -> PartitionSpec | None:
        """How an output leaves; None: as the compiler likes."""
        return self.held.get(var)


def _gathered(layouts: Layouts, crossing: Crossing, segment: Segment) -> dict[tuple[Side, Var], Way]:
    """State that is kept otherwise than it is used, as forward and backward use it."""
    ways: dict[tuple[Side, Var], Way] = {}
    for var in crossing.inputs:
        used = layouts.spec(var)
        if layouts.stored_spec(var) is not None and used is not None:
            for phase in (Phase.FORWARD, Phase.BACKWARD):
                side = segment.number, phase
                ways[side, var] = ((side, used),)
    return ways


def _held(analysis: Analysis, layouts: Layouts, crossing: Crossing) -> dict[Var, PartitionSpec]:
    """Every value whose layout is known, so that the compiler's own propagation decides nothing."""
    made = (var for position in crossing.positions for var in analysis.graph.equations[position].outvars)
    specs = ((var, layouts.spec(var)) for var in made)
    return {var: spec for var, spec in specs if spec is not None}


def _results(jaxpr: Jaxpr) -> tuple[tuple[int, int, Var], ...]:
    return tuple(
        (position, output, var)
        for position, equation in enumerate(jaxpr.eqns)
        for output, var in enumerate(equation.outvars)
    )
