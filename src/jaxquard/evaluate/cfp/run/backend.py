"""Backends of the evaluation: one measures cells on this machine, another prices them for a cluster that is not here.

`run_cell` and `run_plans` are the same for both. A backend opens a session for a cell, which has the pricer of its
search, and runs whole steps of plans, or prices them whole.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from jaxquard.evaluate.cfp.cells.cell import CellSpec, PlanRun
from jaxquard.pricing import Pricer, ShardedProgram

# The part of the work, how many of its programs are done, of how many, and the name of one.
OnPart = Callable[[str, int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PricingWork:
    """The seconds that a pricer has spent so far, added up over its programs; None for what it does not do."""

    lowered_s: float | None = None
    compiled_s: float | None = None
    run_s: float | None = None


class WholeRuns(Protocol):
    """Whole steps of plans, with their times."""

    def compile(self, programs: Mapping[str, ShardedProgram], *, on_part: OnPart) -> None:
        """Compiles the steps of plans, by their names; equal programs once."""
        ...

    def run(
        self, runs: Sequence[PlanRun], *, chosen: str | None, limit_bytes: int | None, on_part: OnPart
    ) -> list[PlanRun]:
        """Returns the plans with time, communication and memory of their compiled steps.

        Args:
            chosen: the name of the plan that the search chose; None if nothing fits.
            limit_bytes: what takes more is not among the best.
        """
        ...


class CellSession(Protocol):
    """The work on one cell."""

    @property
    def pricer(self) -> Pricer:
        """The pricer of the search."""
        ...

    @property
    def capacity_bytes(self) -> int | None:
        """The memory of each device, where it limits all plans."""
        ...

    def pricing_work(self) -> PricingWork:
        """Returns the seconds of the pricer's work so far."""
        ...

    def whole_runs(self) -> WholeRuns:
        """Returns an empty collection of whole steps."""
        ...


class CellBackend(Protocol):
    """Runs cells, or prices them."""

    @property
    def cluster_name(self) -> str | None:
        """The cluster that cells are priced for; None if they are measured here."""
        ...

    def machine(self, spec: CellSpec) -> str:
        """Describes in words all that decides the times of a cell; a cell of another machine is run again."""
        ...

    def depth_machine(self, spec: CellSpec) -> str:
        """The same for analysis and search, which always run on this machine."""
        ...

    def open(self, spec: CellSpec) -> AbstractContextManager[CellSession]:
        """Starts the work on a cell; leaving the context ends its processes."""
        ...
