"""Figure 13: how analysis and search grow with depth.

The programs of a deep model are those of a shallow one, so prices are made up here: the search takes as long with them.
"""

import math
import time
from collections.abc import Hashable, Sequence
from zlib import crc32

from jaxquard.evaluate.cfp.cells.cell import CellSpec, Depth
from jaxquard.evaluate.cfp.cells.cell_step import cell_axes, make_step
from jaxquard.intraop.plan.search_plans import choose_finalists
from jaxquard.intraop.plan.segment_prices import make_chain, price_segments
from jaxquard.intraop.search.chain import search_chain
from jaxquard.intraop.segments.analysis import analyse_step
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.intraop.step.traced_step import trace_step
from jaxquard.pricing import Failure, OnProgress, Price, Provenance, ShardedProgram

MODELS = ("gpt", "llama", "moe")
DEPTHS = (4, 12, 24, 48, 96)
QUICK_DEPTHS = (4, 8, 12)
_MADE_UP = Provenance(
    pricer="made up", jax_version="", platform="", device_kind="", num_devices=8, date="", num_runs=0
)  # fmt: skip


def measure_depth(spec: CellSpec, *, machine: str) -> Depth:
    """Analyses and searches a model on this machine, which is described in words; nothing is compiled."""
    step, args = make_step(spec)
    laps_s = [time.perf_counter()]
    traced = trace_step(step, args)
    laps_s.append(time.perf_counter())
    analysis = analyse_step(traced, axes=cell_axes(spec))
    laps_s.append(time.perf_counter())
    # Once more: the first time, JAX and Python fill their caches.
    analyse_step(traced, axes=cell_axes(spec))
    laps_s.append(time.perf_counter())
    prices = price_segments(StepPrograms(analysis), pricer=_MadeUpPricer())
    start_s = time.perf_counter()
    chain = make_chain(prices)
    best = search_chain(chain, memory_limit_bytes=None).best
    choose_finalists(prices, chain, best, memory_limit_bytes=None, count=spec.num_finalists)
    return Depth(
        model=spec.model,
        num_layers=spec.num_layers,
        num_segments=len(analysis.segments),
        num_programs=prices.num_programs,
        traced_s=laps_s[1] - laps_s[0],
        analysed_s=min(laps_s[2] - laps_s[1], laps_s[3] - laps_s[2]),
        composed_s=time.perf_counter() - start_s,
        machine=machine,
    )


def depth_specs(models: Sequence[str], depths: Sequence[int]) -> list[CellSpec]:
    """Small layers: their width makes no difference here."""
    return [
        CellSpec(model=model, num_layers=depth, model_dim=64, batch_size=8)
        for model in MODELS
        if model in models
        for depth in depths
    ]


class _MadeUpPricer:
    """Prices by a hash of the program's name: always the same, and no two strategies alike."""

    def price(self, program: ShardedProgram) -> Price:
        share = crc32(program.name.encode()) / 2**32
        size_bytes = int(1e6 * (2 - share))
        return Price(time_s=1e-3 * (1 + share), peak_bytes=size_bytes, spread=None, provenance=_MADE_UP)

    def price_all(
        self,
        programs: Sequence[ShardedProgram],
        *,
        groups: Sequence[Hashable] | None = None,
        on_progress: OnProgress | None = None,
        end_s: float = math.inf,
    ) -> list[Price | Failure]:
        return [self.price(program) for program in programs]

    def compare(
        self,
        programs: Sequence[ShardedProgram],
        *,
        groups: Sequence[Hashable] | None = None,
        on_progress: OnProgress | None = None,
        end_s: float = math.inf,
    ) -> list[Price | Failure]:
        return self.price_all(programs)
