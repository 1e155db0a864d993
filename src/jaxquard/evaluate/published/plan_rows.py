"""Our plan beside each published configuration: the same model, batch, precision, chips and framework's constants.

Both are priced the same way: in closed form, then played. A published run fits its chips, so the limit of memory is
what the model says it needs, where that is more than the usual limit. The search knows nothing of the published
configuration: where that is faster than ours, the ratio is below 1. Many published runs are older than what our space
has (selective recomputation, sharded optimizers, sequence parallelism): `alike` is the fastest strategy with the
published one's features, which differs in degrees, stages and microbatch alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from jaxquard.evaluate.published.read_step import StepCase, read_step
from jaxquard.planner.named.choices import SCHEDULE_NAMES, mesh_text
from jaxquard.planner.named.model_step import ModelStep
from jaxquard.planner.named.play_strategy import PlayedStrategy, deciding_term, play_fastest, play_strategy
from jaxquard.planner.named.search import PricedStrategy, StrategySearch
from jaxquard.planner.named.space import list_space
from jaxquard.pricing.model.parallelism import Parallelism
from jaxquard.pricing.model.price_step import RESERVED_SHARE

_NUM_FINALISTS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRow:
    """A published configuration and our plan for the same step.

    Attributes:
        measured_s: as published.
        published: the configuration, as priced and played.
        ours: the fastest of our space.
        alike: the fastest with the same recomputation, storage, sequence and context parallelism, and no zero-bubble
            schedule.
        in_space: our space has the configuration.
        rank: its place among all of the space that fit, by the closed form; 1 is the fastest.
        num_strategies: of the space.
    """

    name: str
    system: str
    model: str
    num_devices: int
    measured_s: float
    published: PlayedStrategy
    ours: PlayedStrategy
    alike: PlayedStrategy
    in_space: bool
    rank: int
    num_strategies: int

    @property
    def ratio(self) -> float:
        """The published configuration's predicted time over ours."""
        return self.published.time_s / self.ours.time_s

    @property
    def alike_ratio(self) -> float:
        """The published configuration's predicted time over that of the fastest with the same features."""
        return self.published.time_s / self.alike.time_s

    @property
    def deciding(self) -> str:
        """The term by which ours is faster; "" if they are the same."""
        if self.ratio <= 1:
            return ""
        ours, theirs = self.ours.terms, self.published.terms
        term = deciding_term(ours, theirs)
        recomputes = theirs.recompute_s - ours.recompute_s > theirs.compute_s - ours.compute_s
        return "recompute" if term == "compute" and recomputes else term


def plan_row(row: Mapping[str, str]) -> PlannedRow:
    """Plans the step of a published row.

    Raises:
        JaxquardError: if the row cannot be read.
    """
    case = read_step(row)
    step = _model_step(case)
    published = _settled(step, case.parallelism)
    space = list_space(step)
    search = StrategySearch(step=step, space=space)
    priced = PricedStrategy(parallelism=published, price=step.price(published))
    # Only what the search finds by itself: a published plan that it misses may be faster.
    alike = search.fastest(_NUM_FINALISTS, lambda strategy: _features(strategy) == _features(published))
    return PlannedRow(
        name=case.name,
        system=row.get("system", ""),
        model=row.get("model", ""),
        num_devices=step.num_devices,
        measured_s=case.measured_s,
        published=play_strategy(step, priced),
        ours=play_fastest(step, search.fastest(_NUM_FINALISTS))[0],
        alike=play_fastest(step, alike)[0],
        in_space=published in space,
        rank=search.rank(priced.price.time_s),
        num_strategies=len(space),
    )


def _features(par: Parallelism) -> tuple:
    sequence = par.sequence or par.tensor == 1
    return par.recompute, par.recompute_share, par.zero, sequence, par.context, par.schedule == "zero-bubble"


def _model_step(case: StepCase) -> ModelStep:
    cluster = replace(case.hardware.cluster, num_chips=case.parallelism.num_devices)
    step = ModelStep(
        transformer=case.transformer,
        cluster=cluster,
        system=case.system,
        global_batch=case.parallelism.global_batch,
        dtype=case.parallelism.dtype,
        limit_bytes=cluster.memory.size_bytes * (1 - RESERVED_SHARE),
        chip=case.hardware.chip,
    )
    return replace(step, limit_bytes=max(step.limit_bytes, step.price(case.parallelism).peak_bytes))


def _settled(step: ModelStep, par: Parallelism) -> Parallelism:
    """Returns a strategy as the space writes it: what means the same is written in one way."""
    if par.recompute == "selective" and step.price(par) == step.price(replace(par, recompute="none")):
        par = replace(par, recompute="none")
    if par.zero and par.shard_group == par.data:
        par = replace(par, shard_group=0)
    return replace(par, recompute_share=1.0) if par.recompute != "full" else par


def strategy_text(parallelism: Parallelism) -> str:
    """Returns a strategy in one line."""
    par = parallelism
    share = f" {par.recompute_share:.0%}" if par.recompute == "full" and par.recompute_share < 1 else ""
    words = [mesh_text(par)]
    words += [SCHEDULE_NAMES[par.schedule]] if par.pipeline > 1 else []
    words += [f"microbatch {par.microbatch}", f"recompute {par.recompute}{share}", f"zero {par.zero}"]
    return ", ".join(words) + ("" if par.sequence or par.tensor == 1 else ", no sequence parallelism")
