"""The bytes that a plan communicates by symbolic rules, and the baseline that communicates the fewest.

This is what Alpa minimises (CFP, section 2.2). Bytes are those that each device sends in one step; the topology of the
mesh is left out. The collectives of a program follow from its shardings, as for prices in closed form, and of an array
of so many bytes over p devices each sends, by the rules of Alpa (its `LogicalDeviceMesh`):

    all-reduce          2 (p - 1) / p of the array
    all-gather          (p - 1) / p of the whole array
    reduce-scatter      (p - 1) / p of the whole array
    all-to-all          (p - 1) / p of what it holds: a device keeps one p-th of its own part

Alpa multiplies all-to-all by p / 2, since it found it slow; that is no volume, and is left out here, and so are Alpa's
constants that break ties. Alpa solves an integer program over single operators. Here the same search finds the baseline
that finds plans, on the same blocks, with bytes in place of seconds. 2D products are left out.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from jax.sharding import AbstractMesh

from jaxquard.cluster.speeds import GroupCollective
from jaxquard.intraop.plan.segment_prices import (
    assignment_of,
    make_chain,
    price_segments,
)
from jaxquard.intraop.search.chain import search_chain
from jaxquard.intraop.segments.analysis import Analysis, analyse_step
from jaxquard.intraop.shardings.baselines import CandidatePlan, baselines
from jaxquard.intraop.shardings.layouts import Assignment
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.pricing import Price, RooflinePricer, ShardedProgram


def volumes_bytes(programs: StepPrograms, assignments: Sequence[Assignment]) -> list[float]:
    """Returns the bytes that each device sends in a step under each of some assignments."""
    pricer = _VolumePricer(programs.analysis)
    return [pricer.price(programs.write_step(assignment)).time_s for assignment in assignments]


def volume_baseline(programs: StepPrograms) -> CandidatePlan:
    """Returns the plan that communicates the fewest bytes: the best by the sum of blocks, or another baseline.

    Each block is a segment, so that even with every choice on every axis few programs are looked at. Blocks by
    themselves do not see that sums of a weight's gradients are merged, as those of an embedding that is the head too,
    so whole steps are compared in the end.
    """
    analysis = programs.analysis
    alone = analyse_step(analysis.step, axes=analysis.axes, lengths=[1] * len(analysis.blocks))
    of_blocks = StepPrograms(replace(alone, blocks=analysis.blocks))
    prices = price_segments(of_blocks, pricer=_VolumePricer(analysis))
    best = search_chain(make_chain(prices), memory_limit_bytes=None, max_points=1).best
    assignments = [assignment_of(prices, best), *(one.assignment for one in baselines(analysis).values())]
    sizes_bytes = volumes_bytes(programs, assignments)
    return CandidatePlan(name="volume", assignment=assignments[sizes_bytes.index(min(sizes_bytes))])


# Which sums are merged depends on the chips alone; a mesh is over as many of these as it needs.
_CLUSTER = "h100-8x1024"


class _VolumePricer(RooflinePricer):
    """A pricer whose seconds are bytes that each device sends."""

    def __init__(self, analysis: Analysis) -> None:
        sizes = tuple(analysis.axes.values())
        super().__init__(_CLUSTER, AbstractMesh(sizes, tuple(analysis.axes)))
        self._axis_sizes = sizes

    def price(self, program: ShardedProgram) -> Price:
        """Returns the bytes of a program as a price without memory."""
        cost = self.cost(program)
        sent = 0.0
        for found in (one.collective for one in cost.collectives):
            num_devices = math.prod(self._axis_sizes[axis] for axis in found.axes)
            twice = 2 if found.kind is GroupCollective.ALL_REDUCE else 1
            sent += twice * found.size_bytes * (num_devices - 1) / num_devices
        return replace(self.to_price(cost), time_s=sent, peak_bytes=0)
