"""Prices: seconds and bytes of a program, with their provenance; failures; and the protocol of a pricer."""

import enum
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jaxquard.pricing.program.sharded_program import ShardedProgram
from jaxquard.progress import Move


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The source of a price.

    Attributes:
        pricer: "measured", "compiled" where the target's compiler was asked and nothing ran, "mock-gpu" where one
            device ran the computation and stood in for all, or "model" where all follows from the jaxpr.
        device_kind: as JAX names it; on CPU followed by the processor and its cores, which JAX does not give.
        date: of the measurement or the compilation, ISO 8601 in UTC.
        num_runs: how many timed runs there were.
        was_stopped_early: whether it was so much slower than the best candidate that its other runs were skipped.
        modelled: the parts that were computed from a cluster's figures, and which cluster; "" if all was measured.

    Example:
        >>> origin = jq.pricing.Provenance(
        ...     pricer="measured",
        ...     jax_version="0.10.2",
        ...     platform="cpu",
        ...     device_kind="cpu",
        ...     num_devices=8,
        ...     date="2026-01-31T12:00:00+00:00",
        ...     num_runs=10,
        ... )
        >>> f"{origin.pricer} on {origin.num_devices} x {origin.device_kind}"
        'measured on 8 x cpu'
    """

    pricer: str
    jax_version: str
    platform: str
    device_kind: str
    num_devices: int
    date: str
    num_runs: int
    was_stopped_early: bool = False
    modelled: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Seconds and bytes of one program.

    Communication is what is not hidden: the time in which a device has a collective under way and computes nothing, in
    the mean over devices. A collective that waits for other devices is under way. On CPU, virtual devices share the
    host's cores, and while some wait in a collective others still compute what they will bring to it; so all of them
    count as one device, and only the time in which no device computes is communication. All else is computation,
    idle time and the start of the program included. The part of communication is measured in runs under a profiler,
    which are slower (on CPU some microseconds an instruction), and is applied to the time without one.

    Attributes:
        time_s: the minimum of the runs; of close candidates, from their runs side by side (`paired_times`); of training
            loops, the median of the steps.
        compute_s: `time_s` less `communication_s`.
        communication_s: as above; None if nobody asked, or where the platform does not show it.
        peak_bytes: on each device: arguments, temporaries and outputs, less what outputs share with arguments.
        spread: how far the upper quartile of the runs lies above the minimum, as a part of the minimum; None if there
            were too few runs.
        num_rematerialized: values that the partitioner gathers whole, as it finds no better way between two shardings.

    Example:
        >>> origin = jq.pricing.Provenance(
        ...     pricer="measured",
        ...     jax_version="0.10.2",
        ...     platform="cpu",
        ...     device_kind="cpu",
        ...     num_devices=8,
        ...     date="2026-01-31T12:00:00+00:00",
        ...     num_runs=10,
        ... )
        >>> price = jq.pricing.Price(time_s=2e-3, peak_bytes=2**20, spread=0.02, provenance=origin)
        >>> f"{price.time_s * 1e3:g} ms, {price.peak_bytes / 2**20:g} MiB"
        '2 ms, 1 MiB'
    """

    time_s: float
    compute_s: float | None = None
    communication_s: float | None = None
    peak_bytes: int
    spread: float | None
    provenance: Provenance
    num_rematerialized: int = 0


class FailureReason(enum.Enum):
    """The reason why a candidate failed.

    Example:
        >>> [reason.value for reason in jq.pricing.FailureReason]
        ['out of memory', 'too slow', 'does not lower', 'does not compile', 'does not run', 'no time left']
    """

    OUT_OF_MEMORY = "out of memory"
    TOO_SLOW = "too slow"
    NO_LOWERING = "does not lower"
    NO_COMPILATION = "does not compile"
    NO_RUN = "does not run"
    NO_TIME = "no time left"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A candidate that failed: its name, the reason, and the first line of the error.

    Example:
        >>> failure = jq.pricing.Failure(
        ...     name="segment 0, rows", reason=jq.pricing.FailureReason("out of memory"), message="RESOURCE_EXHAUSTED"
        ... )
        >>> failure.reason.value
        'out of memory'
    """

    name: str
    reason: FailureReason
    message: str

    def __str__(self) -> str:
        return f"{self.name}: {self.reason.value} ({self.message})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of pricing.

    Attributes:
        done: how many programs have a price or failed.
        name: the program that was last in work, or what is done with all of them.
        num_cached: how many prices were known before.
        left_s: how long the rest may take; None as long as nothing is measured.

    Example:
        >>> progress = jq.pricing.Progress(done=3, total=12, name="segment 0, rows", num_cached=1, left_s=8.0)
        >>> f"{progress.done}/{progress.total}: {progress.words}"
        '3/12: 8 s left; 1 known; segment 0, rows'
    """

    done: int
    total: int
    name: str
    num_cached: int
    left_s: float | None

    @property
    def words(self) -> str:
        """The time left, then the number of known prices, then the last program."""
        known = f"{self.num_cached} known; " if self.num_cached else ""
        if self.left_s is None:
            return f"{known}{self.name}"
        time = f"{self.left_s:.0f} s" if self.left_s < 90 else f"{self.left_s / 60:.0f} min"
        return f"{time} left; {known}{self.name}"

    def move(self, move: Move) -> None:
        """Moves a bar."""
        move(self.done, self.total, self.words)


OnProgress = Callable[[Progress], None]


class Pricer(Protocol):
    """Prices programs; `search_sharding` takes any object with these methods.

    Example:
        >>> class OneSecond:
        ...     def price(self, program):
        ...         where = jq.pricing.Provenance(
        ...             pricer="fixed", jax_version="", platform="", device_kind="", num_devices=8, date="", num_runs=0
        ...         )
        ...         return jq.pricing.Price(time_s=1.0, peak_bytes=0, spread=None, provenance=where)
        ...
        ...     def price_all(self, programs, *, groups=None, on_progress=None, end_s=float("inf")):
        ...         return [self.price(program) for program in programs]
        ...
        ...     compare = price_all
        >>> pricer: jq.pricing.Pricer = OneSecond()
    """

    def price(self, program: ShardedProgram) -> Price:
        """The price of one program.

        Raises:
            PricingError: if it does not compile, fit or run.
        """
        ...

    def price_all(
        self,
        programs: Sequence[ShardedProgram],
        *,
        groups: Sequence[Hashable] | None = None,
        on_progress: OnProgress | None = None,
        end_s: float = math.inf,
    ) -> list[Price | Failure]:
        """The prices of many, in their order; what fails fails.

        Args:
            groups: for each program, a key that it shares with those that compete with it; by default all do.
            on_progress: called as prices become known.
            end_s: the end of the time for them, by `time.monotonic`: what compiles then is ended, and programs without
                a price fail as `FailureReason.NO_TIME`. So the most important ones come first.
        """
        ...

    def compare(
        self,
        programs: Sequence[ShardedProgram],
        *,
        groups: Sequence[Hashable] | None = None,
        on_progress: OnProgress | None = None,
        end_s: float = math.inf,
    ) -> list[Price | Failure]:
        """The prices of a few close candidates, exact enough to show which is best, if this pricer can do better.

        Args:
            groups: as in `price_all`, where candidates come in parts: a group competes, and all run side by side.
            on_progress: called as prices become known.
            end_s: as in `price_all`.
        """
        ...


@runtime_checkable
class LoopPricer(Protocol):
    """Prices whole steps as a training loop runs them; a pricer that can run programs is one as well.

    Example:
        >>> mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> with jq.pricing.MeasuredPricer(mesh, cache=None) as pricer:
        ...     isinstance(pricer, jq.pricing.LoopPricer)
        True
    """

    def price_loops(
        self,
        programs: Sequence[ShardedProgram],
        *,
        budget_s: float,
        on_progress: OnProgress | None = None,
        end_s: float = math.inf,
    ) -> list[Price | Failure]:
        """The prices of steps of a training loop: the median over steps, each with a batch that comes from the host.

        Args:
            budget_s: seconds in which programs are compiled; what is not compiled by then fails, and the others run. So
                the most important ones come first.
            on_progress: called as prices become known.
            end_s: as in `price_all`; also of the runs.
        """
        ...
