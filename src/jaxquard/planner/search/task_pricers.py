"""The pricers of whole tasks, and the host that calls them where it is measured."""

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jaxquard.planner.search.measured_host import MeasuredHost, find_measured_host
from jaxquard.planner.search.plan_options import PlanOptions
from jaxquard.planner.search.pricers import find_cache, make_pricers
from jaxquard.planner.search.step_pricing import MakePricer
from jaxquard.planner.search.targets import PlanTarget
from jaxquard.pricing import PriceCache
from jaxquard.pricing.roofline.roofline_pricer import RooflinePricer

# Few whole tasks are measured, each more often than the many blocks.
_TASK_RUNS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPricers:
    """The pricers of whole tasks, and their host.

    Attributes:
        make_pricer: the pricer of a mesh.
        host: where these measure the tasks, if their devices are its cores.
    """

    make_pricer: MakePricer
    host: MeasuredHost | None


@contextlib.contextmanager
def open_task_pricers(target: PlanTarget, options: PlanOptions, *, cache: Any) -> Iterator[TaskPricers]:
    """Yields the pricers that the options name.

    Args:
        cache: of their prices, in place of that of the options.
    """
    host = find_measured_host(target, cache=cache) if options.pricer == "measure" else None
    with make_pricers(options.pricer, target, cache=cache, num_runs=_TASK_RUNS) as make_pricer:
        yield TaskPricers(make_pricer=make_pricer or (lambda mesh: RooflinePricer(target.cluster, mesh)), host=host)


def cache_of_moment(cache: Any, before_s: Sequence[float]) -> PriceCache | None:
    """Returns a cache for measuring plans again, which all had prices before.

    What is in it was measured right behind those prices: if one of them is new, the cache is, too. So a search that
    finds all of its prices in a cache finds these, and none is compared with one of another day.
    """
    found = find_cache(cache)
    if found is None:
        return None
    moment = hashlib.sha256(repr(sorted(before_s)).encode()).hexdigest()
    return PriceCache(found.folder / "again" / moment[:16])
