"""Tables as files: all of a table comes back, and what segments share is shared again."""

import numpy as np
import pytest

from jaxquard.gemm import LayerPlan, Stationary
from jaxquard.intraop.segments.block_names import BlockNames
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.planner.prices.step_costs import StepCosts
from jaxquard.planner.record.plan import Recompute
from jaxquard.planner.stages.segment_costs import SegmentCost, SegmentCosts
from jaxquard.planner.tables.mesh_prices import MeshFacts
from jaxquard.planner.tables.table_file import DAMAGE, MeshTable, read_names, read_table, write_names, write_table

AXES = (("data", 2), ("rows", 2), ("columns", 2))
ROWS, SHARDED = (("rows", "rows", "rows"),), (("rows", "2d rows", "2d columns"),)
NAMES = {
    0: BlockNames(paths=("params.embed",), scopes=("encoder",), lines=("model.py:1", "train.py:7")),
    1: BlockNames(more_paths=("params.gate",)),
    2: BlockNames(),
}
FACTS = MeshFacts(
    blocks=((0,), (1,), (2,)),
    strategies={(0,): (ROWS,), (1,): (ROWS, SHARDED), (2,): (ROWS, SHARDED)},
    names=NAMES,
    can_begin_stage={1: True, 2: False},
    recipes={"data parallel": {0: ROWS[0], 1: ROWS[0], 2: ROWS[0]}},
    products={1: (LayerPlan(name="layer", stationary=Stationary("y"), slices=(4, 2, 1)),), 2: ()},
    row_chunks={0: 8, 2: 4},
    provenance="compiled on 8 x h100-8",
    num_programs=17,
)


def costs_of(time_s):
    """Returns costs whose two last segments are one object, and whose reshards are shared by all."""
    reshards_s = np.array([[0.0, 1 / 3], [np.inf, 2e-9]])
    cost = SegmentCost(
        forward_s=time_s, input_gradient_s=1 / 7, weight_gradient_s=1e-300, weight_bytes=2**53 + 1, entry=1, exit=0
    )
    first = SegmentCosts(kind=0, strategies=(cost,))
    layer = SegmentCosts(kind=1, strategies=(cost, cost), reshards_s=reshards_s, input_bytes=12, can_begin_stage=False)
    strategies = ((ROWS,), (ROWS, SHARDED), (ROWS, SHARDED))
    return StepCosts(segments=(first, layer, layer), strategies=strategies, blocks=FACTS.blocks, axes=dict(AXES))


def test_a_table_comes_back():
    costs = {(Storage.AS_USED, Recompute.NONE): costs_of(0.1), (Storage.ZERO_3, Recompute.FULL): costs_of(0.2)}
    content = write_table(MeshTable(facts=FACTS, costs=costs), names="some")
    asked = []
    found = read_table(content, axes=AXES, find_names=lambda key: asked.append(key) or NAMES)
    assert asked == ["some"]
    assert found.failure == ""
    assert found.facts == FACTS
    assert found.costs.keys() == costs.keys()
    for key, wanted in costs.items():
        one = found.costs[key]
        assert (one.strategies, one.blocks, one.axes) == (wanted.strategies, wanted.blocks, wanted.axes)
        first, layer, other = one.segments
        assert layer is other
        assert first.reshards_s is None
        for segment, like in zip(one.segments, wanted.segments, strict=True):
            assert segment.strategies == like.strategies
            assert (segment.kind, segment.input_bytes) == (like.kind, like.input_bytes)
            assert segment.can_begin_stage == like.can_begin_stage
        np.testing.assert_array_equal(layer.reshards_s, wanted.segments[1].reshards_s)


def test_a_failure_comes_back():
    content = write_table(MeshTable(failure="nothing divides 7"), names="")
    found = read_table(content, axes=AXES, find_names=lambda key: NAMES)
    assert (found.facts, found.failure) == (None, "nothing divides 7")


def test_names_come_back():
    assert read_names(write_names(NAMES)) == NAMES


@pytest.mark.parametrize("bit", [1, 16])
@pytest.mark.parametrize("step", [7, 61])
def test_every_damage_is_noticed(step, bit):
    """A bit that flips, or an end that is missing, is no other table."""
    costs = {(Storage.AS_USED, Recompute.NONE): costs_of(0.1)}
    content = write_table(MeshTable(facts=FACTS, costs=costs), names="some")
    for place in range(0, len(content), step):
        flipped = content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :]
        for damaged in (flipped, content[:place]):
            try:
                found = read_table(damaged, axes=AXES, find_names=lambda key: NAMES)
            except DAMAGE:
                continue
            # Parts of an archive that say nothing of its content may change.
            assert found.facts == FACTS
            assert found.costs[Storage.AS_USED, Recompute.NONE].segments[0].strategies[0].forward_s == 0.1


def test_a_table_that_says_that_it_is_encrypted_is_damaged():
    content = bytearray(write_table(MeshTable(failure="nothing divides 7"), names=""))
    for start in (b"PK\x03\x04", b"PK\x01\x02"):
        place = content.index(start)
        # The first flag of an entry, behind its versions.
        content[place + (6 if start == b"PK\x03\x04" else 8)] |= 1
    with pytest.raises(DAMAGE):
        read_table(bytes(content), axes=AXES, find_names=lambda key: NAMES)
