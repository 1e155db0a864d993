"""Bounds on plans are those that trying all plans gives."""

import itertools
import math

import numpy as np
import pytest

from jaxquard.intraop.plan.limits.bound_plans import PlanBounds
from jaxquard.intraop.plan.limits.budgeted_pricer import SLOW_FACTOR
from jaxquard.intraop.plan.segment_prices import make_chain, price_segments
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.pricing import RooflinePricer
from tests.intraop.diffusion_unet import diffusion_unet_step
from tests.intraop.search.test_chain import random_chain
from tests.intraop.steps import analyse, mesh_of


def all_plans(chain):
    """The time of every plan, with its choices and the reshards that it takes."""
    for choices in itertools.product(*(range(len(segment.times_s)) for segment in chain)):
        time_s, reshards = 0.0, []
        for place, (segment, choice) in enumerate(zip(chain, choices, strict=True)):
            time_s += segment.times_s[choice]
            if place:
                pair = chain[place - 1].exits[choices[place - 1]], segment.entries[choice]
                time_s += segment.reshards_s[pair]
                reshards.append(pair)
        yield time_s, choices, reshards


@pytest.mark.parametrize("seed", range(3))
def test_the_fastest_plan_through_each(seed):
    chain = random_chain(seed, num_layers=2, num_strategies=6, num_layouts=2, is_equal=False)
    plans = list(all_plans(chain))
    minimum_s = min(time_s for time_s, *_ in plans)
    bounds = PlanBounds(chain)
    assert bounds.minimum_s == pytest.approx(minimum_s)
    for place, segment in enumerate(chain):
        scale_s = min(segment.times_s)
        for strategy in range(len(segment.times_s)):
            through_s = min(time_s for time_s, choices, _ in plans if choices[place] == strategy)
            assert bounds.strategy_slacks(place)[strategy] == pytest.approx((through_s - minimum_s) / scale_s)
    for place in range(1, len(chain)):
        scale_s = min(*chain[place - 1].times_s, *chain[place].times_s)
        table = bounds.reshard_slacks(place)
        for pair in np.ndindex(table.shape):
            through_s = min((time_s for time_s, _, taken in plans if taken[place - 1] == pair), default=math.inf)
            assert table[pair] == pytest.approx((through_s - minimum_s) / scale_s)


@pytest.mark.slow
def test_bounds_prune_what_no_good_plan_needs():
    """Of a model whose segments hardly recur, most programs are reshards; few of them are on the way of a good plan."""
    analysis = analyse(*diffusion_unet_step(), axes={"x": 8})
    prices = price_segments(StepPrograms(analysis), pricer=RooflinePricer("cpu-8", mesh_of(x=8)))
    bounds = PlanBounds(make_chain(prices))
    assert len(analysis.segments) > 20
    slacks = [bounds.reshard_slacks(place) for place in range(1, len(analysis.segments))]
    slacks += [bounds.strategy_slacks(place) for place in range(len(analysis.segments))]
    near = sum(int((table <= SLOW_FACTOR - 1).sum()) for table in slacks)
    assert near < 0.25 * sum(table.size for table in slacks)
    for place in range(len(analysis.segments)):
        assert bounds.strategy_slacks(place).min() == pytest.approx(0.0, abs=1e-9)
