"""Strategies played on the cluster: each task of the pipeline and each message, with the seconds of the closed form.

What the closed form of a pipeline rounds (stages of unlike lengths, messages on their links, the last round of an
interleaved schedule) the player does not. A strategy without a pipeline has nothing to play.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from jaxquard.planner.named.choices import SCHEDULE_NAMES
from jaxquard.planner.named.model_step import ModelStep
from jaxquard.planner.named.search import PricedStrategy
from jaxquard.planner.record.plan import TimeTerms
from jaxquard.pricing.model.parallelism import Parallelism
from jaxquard.pricing.model.pipeline_time import pipeline_time
from jaxquard.pricing.model.price_step import StepPrice
from jaxquard.pricing.model.stage_costs import stage_costs
from jaxquard.pricing.model.stage_prices import stage_prices
from jaxquard.schedules.registry import make_schedule
from jaxquard.simulate.actor_link import link_actors
from jaxquard.simulate.play_pipeline import play_pipeline

# Beyond so many tasks the closed form stands alone.
_MAX_TASKS = 400_000
_TERM_NAMES = ("compute", "recompute", "collective", "transfer", "bubble", "gradient", "optimizer")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedStrategy:
    """A strategy with its time.

    Attributes:
        price: in closed form.
        time_s: of the step: as played, or in closed form where there is nothing to play.
        terms: what the time goes to.
        is_played: whether it was played.
    """

    parallelism: Parallelism
    price: StepPrice
    time_s: float
    terms: TimeTerms
    is_played: bool


def play_strategy(step: ModelStep, priced: PricedStrategy) -> PlayedStrategy:
    """Plays a strategy that has a pipeline."""
    par, price = priced.parallelism, priced.price
    num_tasks = 3 * par.num_stages * par.num_microbatches
    is_played = par.pipeline > 1 and num_tasks <= _MAX_TASKS
    time_s = _played_s(step, par) if is_played else price.time_s
    return PlayedStrategy(
        parallelism=par, price=price, time_s=time_s, terms=_time_terms(step, priced, time_s), is_played=is_played
    )


def play_fastest(step: ModelStep, finalists: Iterable[PricedStrategy]) -> tuple[PlayedStrategy, ...]:
    """Plays strategies, and returns them with the fastest first."""
    played = [play_strategy(step, finalist) for finalist in finalists]
    return tuple(sorted(played, key=lambda item: (item.time_s, item.price.peak_bytes)))


def deciding_term(ours: TimeTerms, other: TimeTerms) -> str:
    """Returns the term in which another strategy loses most against ours."""
    losses = {name: getattr(other, f"{name}_s") - getattr(ours, f"{name}_s") for name in _TERM_NAMES}
    losses["compute"] += losses.pop("recompute")
    return max(losses, key=lambda name: losses[name])


def _played_s(step: ModelStep, par: Parallelism) -> float:
    schedule = make_schedule(SCHEDULE_NAMES[par.schedule], num_stages=par.num_stages, num_actors=par.pipeline)
    costs = stage_costs(step.transformer, par, step.cluster, step.system, chip=step.chip)
    links = link_actors(step.cluster, num_actors=par.pipeline, chips_apart=par.num_devices // par.pipeline)
    return play_pipeline(schedule, costs, num_microbatches=par.num_microbatches, links=links).step_time_s


def _time_terms(step: ModelStep, priced: PricedStrategy, time_s: float) -> TimeTerms:
    """Splits a time; where the player differs from the closed form, the difference is time in which actors wait."""
    par, price = priced.parallelism, priced.price
    prices = stage_prices(step.transformer, par, step.cluster, step.system, step.chip)
    transfer_s = pipeline_time(prices, par, overlap=step.system.pipeline_overlap).transfer_s
    bubble_s = price.bubble_s + time_s - price.time_s
    return TimeTerms(
        compute_s=price.compute_s - price.recompute_s,
        recompute_s=price.recompute_s,
        collective_s=price.communication_s - transfer_s,
        transfer_s=transfer_s,
        bubble_s=max(0.0, bubble_s),
        gradient_s=price.gradient_s,
        optimizer_s=price.optimizer_s,
        other_s=price.other_s + min(0.0, bubble_s),
    )
