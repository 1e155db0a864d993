"""Chains of segments for tests: random ones, and ones of equal layers."""

import numpy as np
from hypothesis import strategies as st

from jaxquard.planner.stages.segment_costs import PipelineShape, SegmentCost, SegmentCosts

ONE_STAGE_EACH = ("gpipe", "1f1b", "eager-1f1b", "zero-bubble-h1", "zero-bubble-h2")
LOOPED = ("interleaved", "looped-bfs")
V_SHAPED = ("zero-bubble-v", "dual-pipe-v")

times = st.sampled_from([0.0, 0.25, 1.0, 1.5, 2.0, 3.5])
sizes = st.sampled_from([0, 1, 2, 5, 8, 13])


@st.composite
def segment_costs(draw, num_layouts=2):
    return SegmentCost(
        forward_s=draw(times),
        input_gradient_s=draw(times),
        weight_gradient_s=draw(times),
        recompute_s=draw(st.sampled_from([0.0, 0.5])),
        step_s=draw(times),
        weight_bytes=draw(sizes),
        gradient_bytes=draw(sizes),
        optimizer_bytes=draw(sizes),
        activation_bytes=draw(sizes),
        working_bytes=draw(sizes),
        entry=draw(st.integers(0, num_layouts - 1)),
        exit=draw(st.integers(0, num_layouts - 1)),
    )


@st.composite
def chains(draw, min_segments=1, max_segments=5, max_strategies=3):
    """Chains with segments that recur, with reshards, and with places where no stage may begin."""
    num_kinds = draw(st.integers(1, 3))
    kinds = [draw(st.lists(segment_costs(), min_size=1, max_size=max_strategies)) for _ in range(num_kinds)]
    tables = [
        np.asarray(draw(st.lists(st.sampled_from([0.0, 0.5, 2.0]), min_size=4, max_size=4))).reshape(2, 2)
        for _ in range(2)
    ]
    chain = []
    for place in range(draw(st.integers(min_segments, max_segments))):
        kind = draw(st.integers(0, num_kinds - 1))
        chain.append(
            SegmentCosts(
                kind=kind,
                strategies=tuple(kinds[kind]),
                reshards_s=draw(st.sampled_from(tables)) if place else None,
                input_bytes=draw(st.sampled_from([0, 1, 4])),
                can_begin_stage=draw(st.sampled_from([True, True, True, False])),
            )
        )
    return chain


@st.composite
def shapes(draw, max_actors=4):
    """Shapes of one to four actors, with one or two stages each."""
    num_actors = draw(st.integers(1, max_actors))
    num_microbatches = draw(st.integers(1, 9))
    schedule = draw(st.sampled_from([*ONE_STAGE_EACH, *LOOPED, *V_SHAPED] if num_actors > 1 else ["none"]))
    num_stages = num_actors
    if schedule in V_SHAPED or (schedule in LOOPED and draw(st.booleans())):
        num_stages = 2 * num_actors
    return PipelineShape(
        num_actors=num_actors, num_stages=num_stages, schedule=schedule, num_microbatches=num_microbatches
    )


def layer(*, time_s: float = 3.0, scale: float = 1.0, **values) -> SegmentCost:
    """A layer's cost: a third of its time in each phase."""
    third = time_s * scale / 3
    return SegmentCost(forward_s=third, input_gradient_s=third, weight_gradient_s=third, **values)


def equal_layers(
    num_layers: int, *strategies: SegmentCost, ends: SegmentCost | None = None, input_bytes: int = 8
) -> list[SegmentCosts]:
    """A chain of equal layers, with a segment of another kind at each end if its cost is given."""
    num_layouts = 1 + max(max(cost.entry, cost.exit) for cost in strategies)
    reshards_s = np.zeros((num_layouts, num_layouts))
    first = SegmentCosts(kind=0, strategies=strategies)
    rest = SegmentCosts(kind=0, strategies=strategies, reshards_s=reshards_s, input_bytes=input_bytes)
    chain = [first, *[rest] * (num_layers - 1)]
    if ends is None:
        return chain
    begin = SegmentCosts(kind=1, strategies=(ends,))
    end = SegmentCosts(kind=2, strategies=(ends,), reshards_s=reshards_s, input_bytes=input_bytes)
    return [begin, *[rest] * num_layers, end]
