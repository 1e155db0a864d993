"""All baselines of a step, the usual ones and the published ones, each with what ours does better."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jaxquard.planner.named.baselines.published import published_strategies
from jaxquard.planner.named.baselines.usual import UsualStrategy, usual_strategies
from jaxquard.planner.named.choose import TIE
from jaxquard.planner.named.model_step import ModelStep
from jaxquard.planner.named.play_strategy import PlayedStrategy, deciding_term, play_strategy
from jaxquard.planner.record.plan import PlanBaseline
from jaxquard.planner.record.tables import bytes_text, percent_text, time_text

# Of two times that a strategy written in two ways has, the difference.
_EQUAL = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedBaseline:
    """A usual or published strategy with its time.

    Attributes:
        played: None if it cannot run.
        source: of a published one.
    """

    usual: UsualStrategy
    played: PlayedStrategy | None
    source: str = ""


def play_baselines(step: ModelStep, model: str) -> tuple[PlayedBaseline, ...]:
    """Plays the baselines of a step.

    Args:
        model: the name under which published configurations are found.
    """
    found = [(usual, "") for usual in usual_strategies(step)] + list(published_strategies(step, model))
    return tuple(
        PlayedBaseline(usual=usual, played=play_strategy(step, usual.priced) if usual.priced else None, source=source)
        for usual, source in found
    )


def describe_baselines(
    step: ModelStep, baselines: Sequence[PlayedBaseline], best: PlayedStrategy
) -> tuple[PlanBaseline, ...]:
    """Returns baselines as a plan has them, with what ours does better."""
    return tuple(_describe(step, baseline, best) for baseline in baselines)


def _describe(step: ModelStep, baseline: PlayedBaseline, best: PlayedStrategy) -> PlanBaseline:
    usual, played, source = baseline.usual, baseline.played, baseline.source
    if played is None:
        return PlanBaseline(
            name=usual.name, time_s=math.inf, memory_bytes=0, fits=False, source=source, note=usual.reason
        )
    fits = played.price.peak_bytes <= step.limit_bytes
    return PlanBaseline(
        name=usual.name,
        time_s=played.time_s,
        memory_bytes=round(played.price.peak_bytes),
        mfu=step.mfu(played.time_s),
        fits=fits,
        source=source,
        note=_note(step, best, played, fits=fits),
    )


def _note(step: ModelStep, best: PlayedStrategy, other: PlayedStrategy, *, fits: bool) -> str:
    if not fits:
        parts = other.price.memory.parts
        excess = other.price.peak_bytes - step.limit_bytes
        largest = max(parts, key=lambda name: parts[name])
        return f"does not fit by {bytes_text(round(excess))}, most of it in {largest}"
    share = other.time_s / best.time_s - 1
    if abs(share) < _EQUAL:
        return "as fast as ours"
    if -TIE <= share < 0:
        return f"{percent_text(-share)} faster than ours: a tie, as prices err by more"
    if share < 0:
        return f"{percent_text(-share)} faster than ours; the wishes exclude it"
    term = deciding_term(best.terms, other.terms)
    lost_s = _term_s(other, term) - _term_s(best, term)
    return f"takes {percent_text(share)} longer than ours, {time_text(lost_s)} of it in {term}"


def _term_s(played: PlayedStrategy, term: str) -> float:
    value = getattr(played.terms, f"{term}_s")
    return value + played.terms.recompute_s if term == "compute" else value
