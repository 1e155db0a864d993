"""Made-up prices, so that a search can be tested without measuring anything."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxquard.pricing import Failure, Price, ShardedProgram
from jaxquard.pricing.price import FailureReason, Progress, Provenance

_NAME = r"(?:2d rows|2d columns|rows|columns|contracted|scattered|batch \d+)"
CHOICE = re.compile(f"{_NAME}(?:/{_NAME})*")
PROVENANCE = Provenance(
    pricer="made up",
    jax_version="0",
    platform="none",
    device_kind="thought",
    num_devices=8,
    date="2026-01-01",
    num_runs=1,
)
TIMES_MS = {"rows": 3, "columns": 2, "contracted": 4, "batch 0": 1, "scattered": 5, "2d rows": 6, "2d columns": 6}
SIZES = {"rows": 30, "columns": 20, "contracted": 10, "batch 0": 25, "scattered": 5, "2d rows": 4, "2d columns": 4}


class FakePricer:
    """Prices a program by the choices in its name: milliseconds and bytes of each add up. Reshards cost nothing.

    A choice on two axes costs what its parts do, unless it has a price of its own.

    Attributes:
        names: of all programs that were asked for.
        calls: the same by call.
    """

    def __init__(
        self,
        *,
        times_ms: Mapping[str, float] = TIMES_MS,
        sizes: Mapping[str, int] = SIZES,
        fails: Callable[[str], bool] = lambda name: False,
    ):
        self.times_ms = times_ms
        self.sizes = sizes
        self.fails = fails
        self.names: list[str] = []
        self.calls: list[list[str]] = []

    def price(self, program: ShardedProgram) -> Price:
        (found,) = self.price_all([program])
        assert isinstance(found, Price)
        return found

    def price_all(
        self,
        programs: Sequence[ShardedProgram],
        *,
        groups: Any = None,
        on_progress: Any = None,
        end_s: float = math.inf,
    ) -> list[Price | Failure]:
        assert groups is None or len(groups) == len(programs)
        self.names += [program.name for program in programs]
        self.calls.append([program.name for program in programs])
        if on_progress is not None:
            total = len(programs)
            on_progress(Progress(done=total, total=total, name="all", num_cached=0, left_s=None))
        return [self._price(program.name) for program in programs]

    def compare(
        self,
        programs: Sequence[ShardedProgram],
        *,
        groups: Any = None,
        on_progress: Any = None,
        end_s: float = math.inf,
    ) -> list[Price | Failure]:
        return self.price_all(programs, groups=groups, on_progress=on_progress, end_s=end_s)

    def _price(self, name: str) -> Price | Failure:
        if self.fails(name):
            return Failure(name=name, reason=FailureReason.OUT_OF_MEMORY, message="it is said to be too large")
        if name.startswith("reshard"):
            return Price(time_s=0.0, peak_bytes=0, spread=None, provenance=PROVENANCE)
        choices = CHOICE.findall(name.split(": ", 1)[1])
        return Price(
            time_s=sum(_sum(self.times_ms, choice) for choice in choices) * 1e-3,
            peak_bytes=int(sum(_sum(self.sizes, choice) for choice in choices)),
            spread=0.0,
            provenance=PROVENANCE,
        )


def _sum(prices: Mapping[str, float], choice: str) -> float:
    return prices[choice] if choice in prices else sum(prices[name] for name in choice.split("/"))
