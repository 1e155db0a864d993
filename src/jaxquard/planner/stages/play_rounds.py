"""A long step, played by a few of its rounds: from one round to the next it gets longer by the same time.

A round is as many microbatches as there are actors. Changes of a step are compared by this; what a plan says of its own
time is played whole.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from jaxquard.planner.record.plan import TimeTerms
from jaxquard.planner.stages.play_assignment import PlayedAssignment, StageTotals, play_stages
from jaxquard.planner.stages.segment_costs import PipelineShape
from jaxquard.simulate.actor_link import NO_LINKS, ActorLinks

# Rounds that are played, before one more.
_NUM_ROUNDS = 3
# Shorter steps are played whole.
_MIN_ROUNDS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedRounds:
    """A step as it plays, or as a few of its rounds say.

    Attributes:
        plays: of the whole step; or of a few rounds, and of one more.
        num_more: rounds beyond those of the first play.
    """

    plays: tuple[PlayedAssignment, ...] = field(repr=False)
    num_more: int = 0

    @property
    def time_s(self) -> float:
        """The time of the step."""
        return self._extend(lambda play: play.time_s)

    @property
    def peak_bytes(self) -> tuple[int, ...]:
        """The peak of each actor."""
        actors = range(len(self.plays[0].peak_bytes))
        return tuple(round(self._extend(lambda play, actor=actor: play.peak_bytes[actor])) for actor in actors)

    @property
    def actor_of(self) -> tuple[int, ...]:
        """The actor of each stage."""
        return self.plays[0].actor_of

    def times(self, like: "PlayedRounds | None" = None) -> TimeTerms:
        """Returns what the time goes to.

        Args:
            like: the same step with other tasks, whose transfers take about as long; else it is played without them.
        """
        transfers = [None] * len(self.plays) if like is None else [play.times.transfer_s for play in like.plays]
        found = [play.find_times(transfer_s) for play, transfer_s in zip(self.plays, transfers, strict=True)]
        first, last = found[0], found[-1]
        names = TimeTerms.__dataclass_fields__
        grown = {name: self.num_more * (getattr(last, name) - getattr(first, name)) for name in names}
        return TimeTerms(**{name: getattr(first, name) + grown[name] for name in names})

    def _extend(self, value: Callable[[PlayedAssignment], float]) -> float:
        first, last = value(self.plays[0]), value(self.plays[-1])
        return first + self.num_more * (last - first)


def count_played(shape: PipelineShape) -> int:
    """Returns the microbatches that are played of a step."""
    num_more = _count_more(shape)
    return shape.num_microbatches if not num_more else 2 * _first_count(shape, num_more) + shape.num_actors


def play_rounds(stages: tuple[StageTotals, ...], shape: PipelineShape, *, links: ActorLinks = NO_LINKS) -> PlayedRounds:
    """Plays the schedule with the costs of stages: all of it, or a few rounds of a long step."""
    num_more = _count_more(shape)
    if not num_more:
        return PlayedRounds(plays=(play_stages(stages, shape, links=links),))
    first = _first_count(shape, num_more)
    shapes = [replace(shape, num_microbatches=count) for count in (first, first + shape.num_actors)]
    return PlayedRounds(plays=tuple(play_stages(stages, one, links=links) for one in shapes), num_more=num_more)


def _count_more(shape: PipelineShape) -> int:
    num_rounds = shape.num_microbatches // shape.num_actors
    return num_rounds - _NUM_ROUNDS if shape.num_actors > 1 and num_rounds >= _MIN_ROUNDS else 0


def _first_count(shape: PipelineShape, num_more: int) -> int:
    return shape.num_microbatches - num_more * shape.num_actors
