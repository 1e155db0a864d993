"""The time of a pipeline from the prices of its stages: closed forms where they are exact, else the player.

With p actors of v stages each, m microbatches, F and B the times of one stage:

    1F1B, GPipe          m v (F + B) + (p - 1) (F + B)         v = 1
    interleaved          m v (F + B) + (p - 1) (F + B)         m a multiple of p; else as the player says
    zero bubble (H1)     m (F + I + W) + (p - 1) (F + I - W)   as long as W is not the longest

where the steady part takes as long as the slowest actor. Messages that are not hidden add to both parts.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

from jaxquard.pricing.model.parallelism import Parallelism
from jaxquard.pricing.model.stage_prices import StagePrice, StagePrices
from jaxquard.schedules.play import TaskTimes, play_rows
from jaxquard.schedules.registry import make_schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTime:
    """Seconds of a pipeline, by what they are spent on.

    Attributes:
        busy_s: of the slowest actor, in its tasks.
        bubble_s: in which it waits.
        transfer_s: the exposed part of messages.

    Example:
        >>> jq.pricing.PipelineTime(busy_s=8.0, bubble_s=2.0, transfer_s=0.5).time_s
        10.5
    """

    busy_s: float
    bubble_s: float
    transfer_s: float

    @property
    def time_s(self) -> float:
        """The whole pipeline."""
        return self.busy_s + self.bubble_s + self.transfer_s


def pipeline_time(prices: StagePrices, parallelism: Parallelism, *, overlap: float) -> PipelineTime:
    """Returns the time of all microbatches on a pipeline.

    Args:
        overlap: of messages, the share that hides behind compute in the steady part.

    Example:
        >>> gpt = jq.pricing.Transformer(num_layers=24, hidden=2048, num_heads=16, vocab=51200, seq=2048)
        >>> parallelism = jq.pricing.Parallelism(pipeline=4, global_batch=16)
        >>> prices = jq.pricing.stage_prices(
        ...     gpt, parallelism, jq.cluster.load_cluster("a100"), jq.pricing.find_system("NeMo")
        ... )
        >>> time = jq.pricing.pipeline_time(prices, parallelism, overlap=1.0)
        >>> 0.1 < time.bubble_s / time.time_s < 0.2
        True
    """
    par, actors, count = parallelism, parallelism.pipeline, parallelism.num_microbatches
    busy = max(_busy_s(prices.actor_stages(actor, actors)) for actor in {0, actors // 2, actors - 1})
    if actors == 1:
        return PipelineTime(busy_s=count * busy, bubble_s=0.0, transfer_s=0.0)
    stage = prices.stages[len(prices.stages) // 2]
    bubble_s = (actors - 1) * _bubble_unit_s(stage, par)
    if par.num_chunks > 1 and count % actors:
        # The last round of an interleaved schedule is as long as a full one would be for the missing microbatches.
        bubble_s += _ragged_s(stage, par)
    messages = 2 * par.num_chunks * prices.transfer_s
    transfer_s = count * messages * (1 - overlap) + 2 * (actors - 1) * prices.transfer_s
    return PipelineTime(busy_s=count * busy, bubble_s=bubble_s, transfer_s=transfer_s)


def _busy_s(stages: Sequence[StagePrice]) -> float:
    return sum(stage.time_s for stage in stages)


def _bubble_unit_s(stage: StagePrice, par: Parallelism) -> float:
    """The part of the bubble that each further actor adds."""
    if par.schedule != "zero-bubble":
        return stage.time_s
    return max(0.0, stage.forward_s + stage.input_gradient_s - stage.weight_gradient_s)


def _ragged_s(stage: StagePrice, par: Parallelism) -> float:
    """The time that the player adds to the closed form where microbatches are no multiple of the actors."""
    unit = _ragged_units(par.pipeline, par.num_chunks, par.num_microbatches % par.pipeline)
    return unit * stage.time_s


@functools.lru_cache(maxsize=4_000)
def _ragged_units(actors: int, chunks: int, rest: int) -> float:
    """Plays two rounds and a rest with stages of 1 s: the bubble beyond that of the closed form, in stages."""
    count = 2 * actors + rest
    if actors * chunks > 128 or count > 128:
        # Too large to play: the missing microbatches of the last round leave the places of their backwards in all
        # chunks but the last. Where both are known, the player adds as much or up to 15 % more.
        return (actors - rest) * (chunks - 1) * 2 / 3
    schedule = make_schedule("interleaved", num_stages=actors * chunks, num_actors=actors)
    times = TaskTimes(forward_s=1 / 3, input_gradient_s=1 / 3, weight_gradient_s=1 / 3)
    played = play_rows(schedule.rows(num_microbatches=count), times).makespan_s
    return max(0.0, played - (count * chunks + actors - 1))
