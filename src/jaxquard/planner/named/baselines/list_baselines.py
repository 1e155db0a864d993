"""All baselines of a step, the usual ones and the published ones, each with what ours does better."""

import math

from jaxquard.planner.named.baselines.published import published_strategies
from jaxquard.planner.named.baselines.usual import UsualStrategy, usual_strategies
from jaxquard.planner.named.model_step import ModelStep
from jaxquard.planner.named.play_strategy import PlayedStrategy, deciding_term, play_strategy
from jaxquard.planner.record.plan import PlanBaseline


def list_baselines(step: ModelStep, best: PlayedStrategy, model: str) -> tuple[PlanBaseline, ...]:
    """Returns the baselines of a step.

    Args:
        best: our strategy, with which they are compared.
        model: the name under which published configurations are found.
    """
    found = [_baseline(step, best, usual) for usual in usual_strategies(step)]
    found += [
        _baseline(step, best, published, source=source) for published, source in published_strategies(step, model)
    ]
    return tuple(found)


def _baseline(step: ModelStep, best: PlayedStrategy, usual: UsualStrategy, *, source: str = "") -> PlanBaseline:
    if usual.priced is None:
        return PlanBaseline(
            name=usual.name, time_s=math.inf, memory_bytes=0, fits=False, source=source, note=usual.reason
        )
    played = play_strategy(step, usual.priced)
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
        return f"does not fit by {excess / 1e9:.1f} GB, most of it in {max(parts, key=lambda name: parts[name])}"
    if other.parallelism == best.parallelism:
        return "the same as ours"
    share = other.time_s / best.time_s - 1
    term = deciding_term(best.terms, other.terms)
    lost_s = _term_s(other, term) - _term_s(best, term)
    if share <= 0 or lost_s <= 0:
        return ""
    return f"takes {share:.1%} longer than ours, {lost_s:.3g} s of it in {term}"


def _term_s(played: PlayedStrategy, term: str) -> float:
    value = getattr(played.terms, f"{term}_s")
    return value + played.terms.recompute_s if term == "compute" else value
