"""Times candidates in alternation, so that only their ratios matter.

A busy machine slows whatever runs at that moment. So each round runs every candidate once, in an order that rotates.
A ratio is the median over rounds of the ratio within a round; the minimum of each candidate's times is printed too.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The times of one candidate, one per round."""

    name: str
    times_s: tuple[float, ...]

    @property
    def minimum_s(self) -> float:
        return min(self.times_s)

    @property
    def median_s(self) -> float:
        return statistics.median(self.times_s)

    @property
    def spread(self) -> float:
        """The middle half of the times, as a share of the median."""
        if len(self.times_s) < 2:
            return 0.0
        first, _, third = statistics.quantiles(self.times_s, n=4, method="inclusive")
        return (third - first) / self.median_s

    def ratio_to(self, base: "Measurement") -> float:
        """The median over rounds of this candidate's time by that of `base`."""
        pairs = zip(self.times_s, base.times_s, strict=True)
        return statistics.median(own / other for own, other in pairs)

    def minimum_ratio_to(self, base: "Measurement") -> float:
        return self.minimum_s / base.minimum_s


def measure(
    candidates: Mapping[str, Callable[[], object]], *, num_rounds: int = 20, num_warmups: int = 2
) -> dict[str, Measurement]:
    """Runs every candidate once a round; a run ends when its result is ready."""
    names = list(candidates)
    times_s: dict[str, list[float]] = {name: [] for name in names}
    for round_number in range(-num_warmups, num_rounds):
        first = round_number % len(names)
        for name in names[first:] + names[:first]:
            time_s = _time_once(candidates[name])
            if round_number >= 0:
                times_s[name].append(time_s)
    return {name: Measurement(name=name, times_s=tuple(times_s[name])) for name in names}


def print_ratios(
    measurements: Mapping[str, Measurement],
    *,
    title: str,
    base: str,
    at_most: Mapping[str, float] | None = None,
    console: Console | None = None,
) -> None:
    """Prints a table of times and of ratios to `base`, and whether each is within its target.

    Args:
        measurements: what `measure` returned.
        title: a line above the table.
        base: the candidate that the others are compared with.
        at_most: for some candidates, the largest ratio to `base` that we aim at.
        console: where to print; standard output if absent.
    """
    at_most = at_most or {}
    table = Table(title=title, title_justify="left")
    table.add_column("candidate")
    for heading in ("minimum", "median", "spread", "ratio", "ratio of minimums", "target"):
        table.add_column(heading, justify="right")
    for name, measurement in measurements.items():
        ratio = measurement.ratio_to(measurements[base])
        table.add_row(
            name,
            format_time(measurement.minimum_s),
            format_time(measurement.median_s),
            f"{measurement.spread:.0%}",
            f"{ratio:.3f}",
            f"{measurement.minimum_ratio_to(measurements[base]):.3f}",
            _format_target(ratio, at_most.get(name)),
        )
    (console or Console()).print(table)


def format_time(time_s: float) -> str:
    """`0.0021` is `2.10 ms`."""
    if time_s >= 1:
        return f"{time_s:.2f} s"
    return f"{time_s * 1e3:.2f} ms" if time_s >= 1e-3 else f"{time_s * 1e6:.2f} µs"


def _time_once(candidate: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    jax.block_until_ready(candidate())
    return time.perf_counter() - start_s


def _format_target(ratio: float, at_most: float | None) -> str:
    if at_most is None:
        return ""
    return f"at most {at_most:.2f}: {'kept' if ratio <= at_most else 'missed'}"
