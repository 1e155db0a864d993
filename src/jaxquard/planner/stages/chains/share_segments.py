"""Makes equal segments of a chain one: what a search finds for one of them, it need not find again.

The layers at the ends of a step have neighbours of other layouts than those between, and are kinds of their own where
strategies are written. To a search they are equal if their numbers are.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from jaxquard.planner.stages.segment_costs import CostTable, SegmentCosts


def share_equal(chain: Sequence[SegmentCosts]) -> tuple[SegmentCosts, ...]:
    """Returns the chain with one kind for equal costs, and one segment where all else is equal too."""
    kinds: dict[Hashable, tuple[int, CostTable]] = {}
    reshards: dict[Hashable, np.ndarray | None] = {None: None}
    made: dict[Hashable, SegmentCosts] = {}
    shared: dict[int, SegmentCosts] = {}
    for key, segment in {id(one): one for one in chain}.items():
        costs, table = segment.costs, segment.reshards_s
        kind, costs = kinds.setdefault((costs.seconds.tobytes(), costs.counts.tobytes()), (len(kinds), costs))
        content = None if table is None else (table.shape, table.tobytes())
        table = reshards.setdefault(content, table)
        parts = kind, content, segment.input_bytes, segment.can_begin_stage
        if parts not in made:
            made[parts] = replace(segment, kind=kind, strategies=costs, reshards_s=table)
        shared[key] = made[parts]
    return tuple(shared[id(segment)] for segment in chain)
