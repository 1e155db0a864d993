"""The alternatives of a plan: for each part the fastest strategy without the chosen one, and the term that decides.

A part is replaced together with whatever else then does best. Beside it stands what would be faster with one part
changed and does not fit: no recomputation, or larger microbatches.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from jaxquard.planner.named.choices import CHOICES, mesh_text
from jaxquard.planner.named.model_step import ModelStep
from jaxquard.planner.named.play_strategy import PlayedStrategy, deciding_term, play_strategy
from jaxquard.planner.named.search import PricedStrategy, StrategySearch
from jaxquard.planner.record.plan import PlanAlternative
from jaxquard.pricing.model.parallelism import Parallelism

_PARTS = ("schedule", "stages", "microbatches", "recompute", "mesh", "storage")


def list_alternatives(step: ModelStep, search: StrategySearch, best: PlayedStrategy) -> tuple[PlanAlternative, ...]:
    """Returns the alternatives of all parts that have one."""
    found = []
    for part in _PARTS:
        chosen = CHOICES[part](best.parallelism)
        others = search.fastest(1, lambda par, part=part, chosen=chosen: CHOICES[part](par) != chosen)
        found += [_alternative(part, best, play_strategy(step, other)) for other in others]
    return (*found, *_too_large(step, best))


def _alternative(part: str, best: PlayedStrategy, other: PlayedStrategy) -> PlanAlternative:
    changed = [name for name in _PARTS if name != part and _value(name, best) != _value(name, other)]
    with_others = ", ".join(f"{name} {_text(name, other.parallelism)}" for name in changed)
    return PlanAlternative(
        part=part,
        chosen=_text(part, best.parallelism),
        alternative=_text(part, other.parallelism) + (f" (with {with_others})" if with_others else ""),
        added_s=max(0.0, other.time_s - best.time_s),
        added_bytes=round(other.price.peak_bytes - best.price.peak_bytes),
        deciding=deciding_term(best.terms, other.terms),
    )


def _too_large(step: ModelStep, best: PlayedStrategy) -> Iterator[PlanAlternative]:
    """Lists changes of one part that would be faster, and do not fit."""
    par = best.parallelism
    changes = {"recompute": replace(par, recompute="none", recompute_share=1.0)}
    if par.num_microbatches % 2 == 0:
        changes["microbatches"] = replace(par, microbatch=2 * par.microbatch)
    for part, changed in changes.items():
        price = step.price(changed)
        if price.peak_bytes <= step.limit_bytes or price.time_s >= best.price.time_s:
            continue
        other = play_strategy(step, PricedStrategy(parallelism=changed, price=price))
        yield PlanAlternative(
            part=part,
            chosen=_text(part, par),
            alternative=_text(part, changed),
            added_s=other.time_s - best.time_s,
            added_bytes=round(price.peak_bytes - best.price.peak_bytes),
            deciding="memory",
        )


def _value(part: str, played: PlayedStrategy) -> Any:
    return CHOICES[part](played.parallelism)


def _text(part: str, par: Parallelism) -> str:
    return mesh_text(par) if part == "mesh" else str(CHOICES[part](par))
