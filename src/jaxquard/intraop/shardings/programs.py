"""Writes programs with their shardings: the whole step, or some segments of it, under a choice for every block.

The program of a segment is what the step computes for it: its forward, its backward, the sums of its gradients and the
update of its state. It takes its state, the values that come from segments before it and the gradients that come from
those after it, and returns what others need. Values that cross a segment boundary are copied there, once, and the copy
has the sharding of the next segment:

    b = add a c                    b = add a c                  segment 0
    d = norm b                     e = copy b                   sharded as segment 1 wants it
    f = add b d                    d = norm e                   segment 1
                            =>     f = add e d

Contractions that an assignment makes 2D products are written as such (`write_products`), and so are rows that are
sorted by expert (`write_ragged`).

Without the copy every use of a value would be resharded by itself, where the compiler decides. A value that goes
further than the next segment is copied at every boundary that it crosses.
"""

import functools
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.segments.boundary_values import BoundaryValue, SegmentPhase
from jaxquard.intraop.segments.find_segments import Segment
from jaxquard.intraop.segments.interfaces import SegmentInterface
from jaxquard.intraop.shardings.boundaries import Boundary, find_boundaries, role_of
from jaxquard.intraop.shardings.layouts import Assignment, Layouts, StepLayouts, Storage
from jaxquard.intraop.shardings.write_products import EquationProduct, find_products
from jaxquard.intraop.shardings.write_ragged import RaggedProduct, find_ragged
from jaxquard.intraop.step.phases import EquationPhase
from jaxquard.ir.jaxpr_tools import (
    Equation,
    Jaxpr,
    Var,
    close,
    make_jaxpr,
    rename,
    splice_traced,
    substitute,
    variables,
)
from jaxquard.pricing.program.sharded_program import ShardedProgram

# The segments through which a value comes to a use, each with its phase and the sharding of the value there.
Route = Sequence[tuple[SegmentPhase, PartitionSpec]]
# Where a value is copied on its way to each use.
Stops = Mapping[tuple[SegmentPhase, Var], Sequence[SegmentPhase]]
# A product that the compiler would not shard as an assignment wants it.
WrittenProduct = EquationProduct | RaggedProduct
# (equation, output, sharding) of the values of a jaxpr.
Constraints = tuple[tuple[int, int, PartitionSpec], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedJaxpr:
    """A jaxpr with copies of the values that cross segment boundaries.

    Attributes:
        copies: the copy of a value that a segment has in a phase.
        results: (equation, output, variable) of all values that it computes.
    """

    jaxpr: Any
    copies: Mapping[tuple[SegmentPhase, Var], Var]
    results: tuple[tuple[int, int, Var], ...]


class StepPrograms:
    """Writes the programs of a step; layouts and copied jaxprs are derived once for all of them.

    Args:
        like: writes the programs of the same step for another mesh. Where both have the same segments, they share
            copied jaxprs, boundaries, and the layouts of axes of the same size.

    Attributes:
        layouts: of the step's segments.
    """

    def __init__(self, analysis: Analysis, *, like: "StepPrograms | None" = None) -> None:
        self.layouts = StepLayouts(analysis, like=None if like is None else like.layouts)
        is_like = like is not None and like.analysis.interfaces is analysis.interfaces
        self._copied: dict[Hashable, CopiedJaxpr] = like._copied if like is not None and is_like else {}
        self._like = like if is_like else None

    @property
    def analysis(self) -> Analysis:
        return self.layouts.analysis

    @functools.cached_property
    def boundaries(self) -> tuple[Boundary, ...]:
        """The segment boundaries of the step, in order."""
        return find_boundaries(self.layouts) if self._like is None else self._like.boundaries

    def write_segments(
        self, segments: Sequence[Segment], assignment: Assignment, *, storage: Storage = Storage.AS_USED
    ) -> ShardedProgram:
        """Returns the program of a segment, or of neighbours; `assignment` has a choice for each of their blocks."""
        graph = self.analysis.graph
        parts = _Parts(self.layouts, segments, assignment, storage)
        whole = parts.whole
        equations = [graph.equations[position] for position in whole.positions]
        copied = self._copy(
            tuple(segments), parts, assignment, lambda: make_jaxpr(whole.inputs, equations, whole.outputs)
        )
        return ShardedProgram(
            name=name_segments(segments, assignment, storage=storage),
            jaxpr=copied.jaxpr,
            in_specs=tuple(parts.in_spec(var) for var in whole.inputs),
            out_specs=tuple(parts.held.get(var) for var in whole.outputs),
            constraints=parts.constraints(copied),
            donated=tuple(place for place, var in enumerate(whole.inputs) if var in graph.state),
        )

    def write_step(self, assignment: Assignment, *, storage: Storage = Storage.AS_USED) -> ShardedProgram:
        """Returns the program of the whole step: its segments, with boundary values resharded between them."""
        step = self.analysis.step
        parts = _Parts(self.layouts, self.analysis.segments, assignment, storage)
        copied = self._copy("the step", parts, assignment, lambda: step.jaxpr)
        in_specs = [parts.in_spec(var) for var in step.jaxpr.invars]
        out_specs: list[PartitionSpec | None] = [None] * len(step.jaxpr.outvars)
        for place, result in enumerate(step.result_of_input):
            if result is not None:
                out_specs[result] = in_specs[place]
        return ShardedProgram(
            name="the step",
            jaxpr=copied.jaxpr,
            in_specs=tuple(in_specs),
            out_specs=tuple(out_specs),
            constraints=parts.constraints(copied),
            donated=tuple(place for place, result in enumerate(step.result_of_input) if result is not None),
        )

    def _copy(self, name: Hashable, parts: "_Parts", assignment: Assignment, make: Callable[[], Jaxpr]) -> CopiedJaxpr:
        """Returns a jaxpr with the copies that the routes need, and with 2D products where the assignment has them.

        Strategies that need the same of both share one jaxpr, so that it is made, and walked over for a key, once.
        """
        chosen = {block: assignment[block] for block in parts.blocks}
        products = find_products(self.analysis, chosen) | find_ragged(self.analysis, chosen)
        key = name, frozenset(parts.stops.items()), frozenset(products.items())
        copied = self._copied
        if key not in copied:
            of_equation = {
                number: products[position]
                for number, position in enumerate(parts.whole.positions)
                if position in products
            }
            copied[key] = copy_at_boundaries(
                make(), phases=parts.segment_phases(), stops=parts.stops, products=of_equation
            )
        return copied[key]


def name_segments(segments: Sequence[Segment], assignment: Assignment, *, storage: Storage) -> str:
    """Returns a name such as `segment 0 and 1: columns, rows contracted, zero 1`."""
    numbers = " and ".join(str(segment.number) for segment in segments)
    names = ", ".join(" ".join("/".join(assignment[block]) for block in segment.blocks) for segment in segments)
    kept = "" if storage is Storage.AS_USED else f", {storage.value}"
    return f"segment {numbers}: {names}{kept}"


class _Parts:
    """The layouts of some segments, put together.

    Attributes:
        blocks: the numbers of all their blocks.
        whole: the inputs and outputs of all of them together.
        held: the sharding of every value with a known layout, so that the compiler's own propagation decides nothing.
        routes: how each segment gets what comes from others, and state whose stored layout is another.
    """

    def __init__(self, layouts: StepLayouts, segments: Sequence[Segment], assignment: Assignment, storage: Storage):
        self._analysis = layouts.analysis
        self.blocks = tuple(block for segment in segments for block in segment.blocks)
        self.whole = layouts.interface(Segment(number=segments[0].number, kind=segments[0].kind, blocks=self.blocks))
        self._layouts: dict[int, tuple[Layouts, SegmentInterface]] = {
            segment.number: (
                layouts.lay_out(assignment, segment=segment, storage=storage),
                layouts.interface(segment),
            )
            for segment in segments
        }
        self.held: dict[Var, PartitionSpec] = {}
        self.routes: dict[tuple[SegmentPhase, Var], Route] = {}
        self._inputs: dict[Var, PartitionSpec] = {}
        equations = self._analysis.graph.equations
        for number, (of_segment, interface) in self._layouts.items():
            self.held |= of_segment.specs(var for place in interface.positions for var in equations[place].outvars)
            self._enter(number, of_segment, interface)
        for number, (_, interface) in self._layouts.items():
            for boundary_value in interface.arriving:
                for use in boundary_value.uses:
                    if use[0] == number:
                        self.routes[use, boundary_value.var] = self._route(boundary_value, use)

    @property
    def stops(self) -> Stops:
        """The segments that copy a value on its way, for each use of it."""
        return {use: tuple(stop for stop, _ in route) for use, route in self.routes.items()}

    def segment_phases(self) -> list[SegmentPhase]:
        """Returns the segment and the phase of each equation."""
        of_block = self._analysis.segment_of_block()
        owners, phases = self._analysis.owners, self._analysis.graph.phases
        return [(of_block[owners[position]], phases[position]) for position in self.whole.positions]

    def in_spec(self, var: Var) -> PartitionSpec:
        """Returns the sharding of an input."""
        return self._inputs.get(var, PartitionSpec())

    def constraints(self, copied: CopiedJaxpr) -> Constraints:
        """Returns the shardings of the values of a jaxpr, and of the copies in it."""
        held = dict(self.held)
        for (_, var), route in self.routes.items():
            held |= {copied.copies[stop, var]: spec for stop, spec in route if (stop, var) in copied.copies}
        specs = ((equation, output, held.get(var)) for equation, output, var in copied.results)
        return tuple((equation, output, spec) for equation, output, spec in specs if spec is not None)

    def _enter(self, segment: int, layouts: Layouts, interface: SegmentInterface) -> None:
        """Finds the shardings of a segment's inputs; state that is stored otherwise is resharded once for its uses.

        State of several segments, such as an embedding that is the head's weight too, is stored as the first one has
        it. Without a copy in the layout of the others the compiler may gather activations instead.
        """
        for var in interface.inputs:
            stored, used = layouts.stored_spec(var), layouts.spec(var)
            spec = layouts.entry_spec(var) if stored is None else stored
            if spec is not None:
                self._inputs.setdefault(var, spec)
            is_shared = var in self._analysis.graph.state and self._inputs.get(var) != spec
            if used is not None and (stored is not None or is_shared):
                for phase in (EquationPhase.FORWARD, EquationPhase.BACKWARD):
                    use = segment, phase
                    self.routes[use, var] = ((use, used),)

    def _route(self, boundary_value: BoundaryValue, use: SegmentPhase) -> Route:
        """Returns the way of a value to a use, through these segments."""
        segment, phase = use
        if boundary_value.is_saved and (segment, EquationPhase.FORWARD) in boundary_value.uses:
            phase = EquationPhase.FORWARD
        used = {place for place, _ in boundary_value.uses}
        route = []
        for place in boundary_value.segments_to(segment):
            # From outside of these segments a value comes as the first one that uses it wants it.
            is_here = bool(route) or boundary_value.producer in self._layouts or place in used
            if place in self._layouts and is_here:
                spec = role_of(boundary_value, place).spec(*self._layouts[place], boundary_value.var)
                if spec is not None:
                    route.append(((place, phase), spec))
        return tuple(route)


def copy_at_boundaries(
    jaxpr: Jaxpr,
    *,
    phases: Sequence[SegmentPhase],
    stops: Stops,
    products: Mapping[int, WrittenProduct] = MappingProxyType({}),
) -> CopiedJaxpr:
    """Gives segments their own copies of boundary values; a copy that no equation uses is not made.

    Args:
        phases: for each equation, its segment and phase.
        stops: for a use of a value in a segment and phase, where it is copied; uses with the same stop share the copy.
        products: the equations that are written as other products.
    """
    copies: dict[tuple[SegmentPhase, Var], Var] = {}
    equations: list[Equation] = []
    for number, (equation, phase) in enumerate(zip(jaxpr.eqns, phases, strict=True)):
        renamed = {}
        for var in variables(equation.invars):
            for stop in stops.get((phase, var), ()):
                if (stop, var) not in copies:
                    made, (copies[stop, var],) = splice_traced(_traced_copy(var.aval), [renamed.get(var, var)])
                    equations.extend(made)
                renamed[var] = copies[stop, var]
        renewed = rename(equation, renamed)
        equations.extend(_write_product(renewed, products[number]) if number in products else [renewed])
    results = tuple(
        (position, output, var)
        for position, equation in enumerate(equations)
        for output, var in enumerate(equation.outvars)
    )
    return CopiedJaxpr(jaxpr=close(make_jaxpr(jaxpr.invars, equations, jaxpr.outvars)), copies=copies, results=results)


def _write_product(equation: Equation, product: WrittenProduct) -> list[Equation]:
    """Returns the equations of a product whose result is that of the contraction it stands for."""
    made, (result,) = splice_traced(product.write(equation), equation.invars)
    final = {result: equation.outvars[0]}
    return [one.replace(outvars=[substitute(var, final) for var in one.outvars]) for one in made]


@functools.lru_cache(maxsize=1024)
def _traced_copy(aval: Any) -> Any:
    return jax.make_jaxpr(lambda value: [jnp.copy(value)])(jax.ShapeDtypeStruct(aval.shape, aval.dtype))
