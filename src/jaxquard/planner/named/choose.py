"""The plan among strategies that were played: within the error of prices, the one that is nearest to usual practice.

Prices are off by more than a few per cent, so that strategies whose times differ by less than `TIE` are equally fast as
far as anybody knows. Of these the simpler one is taken: fewer kinds of parallelism, no groups with much traffic across
hosts, nothing that few systems have, more memory left. The plan says which others tie.
"""

from collections.abc import Sequence

from jaxquard.cluster.levels import levels_of
from jaxquard.planner.named.choices import SCHEDULE_NAMES, STORAGES, mesh_text
from jaxquard.planner.named.model_step import ModelStep
from jaxquard.planner.named.play_strategy import PlayedStrategy
from jaxquard.planner.record.tables import percent_text
from jaxquard.pricing.model.parallelism import Parallelism

TIE = 0.02
# Memory is compared in parts of the limit: a few per cent more or less decide nothing.
_MEMORY_PARTS = 10
_MOST_NAMED = 3


def choose_simplest(step: ModelStep, played: Sequence[PlayedStrategy]) -> tuple[PlayedStrategy, tuple[str, ...]]:
    """Returns the simplest strategy of those that tie with the fastest, and a note on the others.

    Args:
        played: that fit, the fastest first.
    """
    fastest = min(played, key=lambda item: item.time_s)
    ties = [item for item in played if item.time_s <= fastest.time_s * (1 + TIE)]
    best = min(ties, key=lambda item: (*_complexity(step, item), item.time_s))
    if best is fastest:
        return best, ()
    faster = sorted((item for item in ties if item.time_s < best.time_s), key=lambda item: item.time_s)
    texts = list(dict.fromkeys(_difference(best, item) for item in faster))
    more = f"; and {len(texts) - _MOST_NAMED} more" if len(texts) > _MOST_NAMED else ""
    return best, (
        f"the simplest of {len(ties)} plans within {percent_text(TIE)}, which is less than prices err: "
        f"{'; '.join(texts[:_MOST_NAMED])}{more}",
    )


def _complexity(step: ModelStep, item: PlayedStrategy) -> tuple[int, ...]:
    """Returns what counts against a strategy, the most important first."""
    par, host = item.parallelism, levels_of(step.cluster)[0].size
    axes = sum(size > 1 for size in (par.tensor, par.context, par.expert, par.pipeline))
    crossing = (par.tensor > host) + (par.context > 1 and par.tensor * par.context > host)
    rare = bool(par.shard_group) + (par.recompute_share < 1) + (par.tensor > 1 and not par.sequence)
    left = _MEMORY_PARTS * max(0.0, 1 - item.price.peak_bytes / step.limit_bytes)
    return axes + crossing, rare, -int(left), par.num_chunks


def _difference(best: PlayedStrategy, other: PlayedStrategy) -> str:
    """Returns what another strategy has in place of ours, and by how much it is faster."""
    ours, theirs = _words(best.parallelism), _words(other.parallelism)
    changed = [text for name, text in theirs.items() if text and ours[name] != text]
    return f"{', '.join(changed)} is {percent_text(1 - other.time_s / best.time_s)} faster"


def _words(par: Parallelism) -> dict[str, str]:
    state = f"state shared by {par.shard_group} replicas" if par.shard_group else STORAGES[par.zero]
    return {
        "mesh": mesh_text(par),
        "schedule": SCHEDULE_NAMES[par.schedule],
        "microbatch": f"microbatch {par.microbatch}",
        "recompute": f"recompute {par.recompute}" + (f" {par.recompute_share:.0%}" if par.recompute_share < 1 else ""),
        "storage": state,
        "experts": f"experts of {par.expert_tensor or par.tensor} devices each" if par.expert > 1 else "",
        "sequence": "sequence parallel" if par.sequence else "no sequence parallel",
    }
