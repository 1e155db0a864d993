"""The places where a stage may begin, and what crosses there: activations forward, their gradients back.

A stage begins at a segment. It may not where products would have to run in another stage than their segment's: in a
checkpoint around several layers, say, whose backward needs all of them at once. Where the user's code has marks, stages
begin at these alone, unless asked otherwise.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jaxquard.errors import PlanError
from jaxquard.intraop.blocks.graph import StepGraph
from jaxquard.intraop.blocks.parameter_paths import equation_place
from jaxquard.intraop.segments.analysis import Analysis, StepAnalyser
from jaxquard.ir.jaxpr_tools import Equation, Var, size_bytes
from jaxquard.ir.operations import MATMULS
from jaxquard.planner.step.apply_plan import microbatch_inputs, part_loop
from jaxquard.planner.step.equation_stages import EquationStages, find_body, stage_equations
from jaxquard.planner.step.mark_blocks import find_mark_blocks
from jaxquard.planner.step.one_microbatch import OneMicrobatch


@dataclass(frozen=True, slots=True, kw_only=True)
class StageStart:
    """A place where a stage may begin, or not.

    Attributes:
        segment: the first of the stage.
        can_begin: whether a stage may begin there.
        reason: why not; "" if it may.
    """

    segment: int
    can_begin: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageBoundary(StageStart):
    """The boundary in front of a segment.

    Attributes:
        forward: the activations that cross it, of one microbatch.
        backward: the gradients that cross back.
    """

    forward: tuple[Var, ...]
    backward: tuple[Var, ...]

    @property
    def forward_bytes(self) -> int:
        """Bytes of the activations of one microbatch, over all devices of an actor."""
        return sum(size_bytes(var.aval) for var in self.forward)

    @property
    def backward_bytes(self) -> int:
        """The same of the gradients."""
        return sum(size_bytes(var.aval) for var in self.backward)


def analyse_microbatch(
    one: OneMicrobatch, *, axes: Mapping[str, int], analyser: StepAnalyser | None = None, **options: Any
) -> Analysis:
    """Finds the blocks and segments of a step on one microbatch; at the user's marks segments end.

    Args:
        axes: of an actor's mesh, and their sizes.
        analyser: of the same step, for several meshes.
        **options: more of those that `analyse_step` has; not the lengths of segments.
    """
    analyser = StepAnalyser(one.traced, shards_rows_alone=True) if analyser is None else analyser
    analysis = analyser.analyse(axes=axes, **options)
    stops = set(itertools.accumulate(len(segment.blocks) for segment in analysis.segments))
    at_marks = set(find_mark_blocks(analysis).values())
    if at_marks <= stops:
        return analysis
    bounds = [0, *sorted(stops | at_marks)]
    lengths = [stop - start for start, stop in itertools.pairwise(bounds)]
    return analyser.analyse(axes=axes, lengths=lengths, **options)


def find_stage_boundaries(
    one: OneMicrobatch, analysis: Analysis, *, ignores_marks: bool = False
) -> tuple[StageBoundary, ...]:
    """Returns the boundaries in front of all segments but the first.

    Args:
        one: the step on one microbatch.
        analysis: of it.
        ignores_marks: lets stages begin elsewhere than at the user's marks.
    """
    firsts = {segment.blocks[0]: segment.number for segment in analysis.segments}
    marked = {mark: firsts[block] - 1 for mark, block in find_mark_blocks(analysis).items() if block in firsts}
    of_block = analysis.segment_of_block()
    owners = _owners(analysis, of_block)
    stages = _stage_by_segments(one, analysis, owners, marked)
    moved = _find_moved(stages, owners)
    only_marks = one.num_marks > 0 and not ignores_marks
    return tuple(
        _boundary(analysis.graph, stages, segment, moved, is_allowed=not only_marks or segment - 1 in marked.values())
        for segment in range(1, len(analysis.segments))
    )


def check_stage_count(
    boundaries: Sequence[StageStart], num_stages: int, *, name_loops: Callable[[], str] = lambda: ""
) -> None:
    """Checks that a step can have so many stages.

    Args:
        name_loops: names the loops with products, if there are any: no stage begins between two of them alone.

    Raises:
        PlanError: if it cannot; the message says why.
    """
    count = 1 + sum(boundary.can_begin for boundary in boundaries)
    if num_stages <= count:
        return
    if not boundaries:
        why = "its products are one segment"
    else:
        reasons = [boundary.reason for boundary in boundaries if not boundary.can_begin]
        why = reasons[0] if reasons else f"it has {len(boundaries) + 1} segments"
    most = "one stage" if count == 1 else f"{count} stages"
    found = f"the step can have {most} at most, but {num_stages} were asked for: {why}."
    if not (loops := name_loops()):
        raise PlanError(f"{found} Ask for fewer stages.")
    raise PlanError(
        f"{found} A stage begins at a product outside of loops, and these have theirs inside: {loops}. Multiply the "
        "inputs of all steps at once in front of the loop (`xs @ w`), so that a stage can begin there; or make the "
        "pipeline by hand (`pipeline_yield`, `accumulate_grads`, `RemoteMesh`); or ask for fewer stages."
    )


def _owners(analysis: Analysis, of_block: Mapping[int, int]) -> dict[Var, int]:
    pairs = zip(analysis.graph.equations, analysis.owners, strict=True)
    return {var: of_block[owner] for equation, owner in pairs for var in equation.outvars}


def _stage_by_segments(
    one: OneMicrobatch, analysis: Analysis, owners: Mapping[Var, int], marked: Mapping[int, int]
) -> EquationStages:
    """Returns the stages if every segment is one."""
    jaxpr = one.traced.jaxpr
    body = find_body(
        jaxpr, results=[found.value for found in one.results], microbatch=microbatch_inputs(one, jaxpr.invars)
    )
    return stage_equations(
        body, loop=part_loop(one), owner_stages=owners, marks=marked, num_stages=len(analysis.segments)
    )


def _find_moved(stages: EquationStages, owners: Mapping[Var, int]) -> list[tuple[int, int, Equation]]:
    """Returns the products that run in another segment than their own: the first and the last of the two."""
    found = []
    for equation, stage in zip(stages.body.jaxpr.eqns, stages.stages, strict=True):
        owner = owners.get(equation.outvars[0]) if equation.primitive.name in MATMULS else None
        if owner is not None and stage is not None and stage != owner:
            found.append((min(stage, owner), max(stage, owner), equation))
    return found


def _boundary(
    graph: StepGraph,
    stages: EquationStages,
    segment: int,
    moved: Sequence[tuple[int, int, Equation]],
    *,
    is_allowed: bool,
) -> StageBoundary:
    forward, backward = stages.activations[segment - 1], stages.gradients[segment - 1]
    across = next((equation for first, last, equation in moved if first < segment <= last), None)
    reason = ""
    if across is not None:
        reason = (
            f"the product at {equation_place(graph, across)} needs both sides of the boundary before segment {segment}"
        )
    elif not is_allowed:
        reason = "stages begin at the marks of the code alone"
    elif not forward:
        reason = f"no activation crosses into segment {segment}"
    return StageBoundary(segment=segment, can_begin=not reason, reason=reason, forward=forward, backward=backward)
