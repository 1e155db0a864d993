"""The options of a search for a plan, read from keyword arguments."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxquard.errors import PlanError
from jaxquard.planner.record.match_names import nearest_names
from jaxquard.progress import Move

# The default budget where programs compile or run.
_BUDGET_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """The options of a search.

    Attributes:
        fix: settings, mesh axes, and strategies by parameter path or source line, that the plan shall have.
        forbid: those that it shall not have.
        pricer: "model", in closed form; "compile" or "mock-gpu" ask the target's compiler for what the closed form
            leaves; "measure" the devices at hand.
        memory_limit_bytes: of a device; by default what the cluster's chips have.
        max_microbatch_size: rows of a microbatch at most.
        ignores_marks: stages may begin elsewhere than at the marks of the code.
        time_budget_s: of the search; what it leaves out is in the plan's log. None for no end. By default 300 where
            programs compile or run: plans that run, or a pricer other than "model"; else none. The usual plans are
            priced first, so that the answer is no worse than the best of them.
        num_measured: plans that run on the devices at hand, if they are; 0 for none.
        num_whole: plans whose tasks are priced whole, and whose programs are played with them: blocks, which are priced
            before, have no part in what a compiler does across them, and in what a task takes to begin. By default 3
            with measured prices where no plan runs, 0 otherwise. The usual plans come on top.
        cache: of prices, and of the tables of a step's costs that follow from them; as in `search_sharding`.
        progress: True shows how far the search is, on stderr, once it takes a few seconds: a bar on a terminal, else a
            line every 15 s. False shows nothing; a function is called with (done, total, what is done).
    """

    fix: Mapping[str, Any] | None = None
    forbid: Mapping[str, Any] | None = None
    pricer: str = "model"
    memory_limit_bytes: int | None = None
    max_microbatch_size: int | None = None
    ignores_marks: bool = False
    time_budget_s: float | Literal["default"] | None = "default"
    num_measured: int = 6
    num_whole: int | None = None
    cache: Any = "default"
    progress: bool | Move = field(default=True, repr=False)

    def __post_init__(self) -> None:
        for name, kinds in (("memory_limit_bytes", int), ("max_microbatch_size", int), ("time_budget_s", int | float)):
            value = getattr(self, name)
            is_default = name == "time_budget_s" and value == "default"
            is_number = isinstance(value, kinds) and not isinstance(value, bool)
            if value is not None and not is_default and not (is_number and value > 0):
                kind = "whole number" if kinds is int else "number"
                raise PlanError(f"{name}={value!r:.80} must be a {kind} above 0, or None for no limit.")
        for name, value in {"num_measured": self.num_measured, "num_whole": self.num_whole}.items():
            is_default = name == "num_whole" and value is None
            if not is_default and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise PlanError(f"{name}={value!r:.80} must be a number of plans, 0 or more.")

    def find_budget_s(self, *, has_runs: bool) -> float | None:
        """Returns the budget of time, given whether plans run; None for none."""
        if self.time_budget_s != "default":
            return self.time_budget_s
        return _BUDGET_S if has_runs or self.pricer != "model" else None


def read_options(options: Mapping[str, Any]) -> PlanOptions:
    """Makes the options of a search from keyword arguments.

    Raises:
        PlanError: if there is no such option, or a value is none.
    """
    known = tuple(PlanOptions.__dataclass_fields__)
    unknown = next((name for name in options if name not in known), None)
    if unknown is not None:
        near = " or ".join(nearest_names(unknown, known))
        raise PlanError(f"{unknown} is no option of a search. Did you mean {near}? There are {', '.join(known)}.")
    return PlanOptions(**options)
