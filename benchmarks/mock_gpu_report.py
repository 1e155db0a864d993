"""Compares the measured computation of a layer's strategies with the predicted one.

Predicted is what the compile pricer makes of the same compiled programs: their schedules, walked with the constants of
the h200 preset. These are fitted to kernels and products that were timed one by one, to none of the programs here.
"""

import gzip
import json
import lzma
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxquard.cluster import Cluster, load_cluster
from jaxquard.hlo import list_schedule, parse_module
from jaxquard.pricing.mock_gpu.combine_times import combine_times
from jaxquard.pricing.target.cluster_costs import ClusterCosts
from jaxquard.pricing.target.walk_schedule import walk_schedule

RECORDED = Path(__file__).parent / "results" / "mock_gpu_prices.json.xz"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedStrategy:
    """A strategy: its computation as measured and as predicted, and its whole time, with modelled collectives."""

    name: str
    measured_s: float
    predicted_s: float
    measured_total_s: float
    predicted_total_s: float

    @property
    def error(self) -> float:
        """The error of the predicted computation, as a part of the measured one."""
        return self.predicted_s / self.measured_s - 1


def read_programs(path: Path = RECORDED) -> Mapping[str, Any]:
    """Reads what was measured: a file, or the folder that measuring left it in."""
    file = path / "prices.json.gz" if path.is_dir() else path
    unpack = lzma.decompress if file.suffix == ".xz" else gzip.decompress
    found = json.loads(unpack(file.read_bytes()))["programs"]
    return {name: program for name, program in found.items() if "times_s" in program}


def compare_strategies(programs: Mapping[str, Any], cluster: Cluster) -> list[ComparedStrategy]:
    """Predicts each program on a cluster."""
    costs, found = ClusterCosts(cluster), []
    for name, program in programs.items():
        walked = walk_schedule(list_schedule(parse_module(program["text"])), costs)
        measured_s = min(program["times_s"])
        combined = combine_times(program["text"], compute_s=measured_s, cluster=cluster)
        found.append(
            ComparedStrategy(
                name=name,
                measured_s=measured_s,
                predicted_s=walked.compute_s,
                measured_total_s=measured_s + combined.communication_s,
                predicted_total_s=walked.time_s,
            )
        )
    return found


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Returns Spearman's correlation of the ranks."""
    ranks = [[sorted(values).index(value) for value in values] for values in (first, second)]
    return statistics.correlation(*map(list, ranks))


def report(path: Path | None = None) -> None:
    """Prints errors and rankings."""
    compared = compare_strategies(read_programs(path or RECORDED), load_cluster("h200-8"))
    errors = [abs(one.error) for one in compared]
    print(f"{len(compared)} strategies of a GPT layer (4096 features) on 8 mocked H200s")
    print(
        f"predicted computation: mean error {statistics.mean(errors):.1%}, median {statistics.median(errors):.1%}, "
        f"worst {max(errors):.1%}; wanted: a mean of at most 10 %"
    )
    compute = rank_correlation([one.measured_s for one in compared], [one.predicted_s for one in compared])
    totals = [one.measured_total_s for one in compared], [one.predicted_total_s for one in compared]
    pick = min(compared, key=lambda one: one.predicted_total_s)
    print(
        f"Spearman's rank correlation: {rank_correlation(*totals):.3f} of whole times, {compute:.3f} of computation "
        f"alone; wanted: 0.9. The pick takes {pick.measured_total_s / min(totals[0]):.3f} of the best time."
    )
    for one in sorted(compared, key=lambda one: one.error)[:: max(1, len(compared) // 8)]:
        print(f"  {one.name}: measured {one.measured_s * 1e3:.2f} ms, predicted {one.error:+.0%}")
