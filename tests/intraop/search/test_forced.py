"""Plans with one strategy at some places are those of the exact search on a chain that has no other."""

import math
from dataclasses import replace

import pytest

from jaxquard.errors import ShardingError
from jaxquard.intraop.search.chain import search_chain
from jaxquard.intraop.search.forced import ForcedChain
from tests.intraop.search.test_chain import random_chain


def held(chain, places, strategy):
    """The chain with one strategy at some places; equal segments stay one object."""
    made = {}
    for place in places:
        times_s = tuple(time_s if one == strategy else math.inf for one, time_s in enumerate(chain[place].times_s))
        made.setdefault(id(chain[place]), replace(chain[place], times_s=times_s))
    return [made[id(segment)] if place in places else segment for place, segment in enumerate(chain)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("share", [None, 0.2, 0.7])
def test_the_fastest_with_each_strategy(seed, share):
    chain = random_chain(seed, num_layers=3, num_strategies=8, num_layouts=2, is_equal=seed % 2 == 0)
    whole = search_chain(chain, memory_limit_bytes=None)
    sizes = whole.smallest.size_bytes, whole.best.size_bytes
    limit_bytes = None if share is None else int(sizes[0] + share * (sizes[1] - sizes[0]))
    forced, places = ForcedChain(chain), [1, 2, 3]
    for strategy in range(8):
        found = forced.fastest(places, strategy, memory_limit_bytes=limit_bytes)
        try:
            expected = search_chain(held(chain, places, strategy), memory_limit_bytes=limit_bytes).best
        except ShardingError:
            assert found is None
        else:
            assert found == expected
            assert {found.choices[place] for place in places} == {strategy}


def test_a_strategy_without_a_price():
    chain = random_chain(0, num_layers=2, num_strategies=4, num_layouts=2)
    chain[1:3] = [replace(chain[1], times_s=(math.inf, *chain[1].times_s[1:]))] * 2
    assert ForcedChain(chain).fastest([1, 2], 0, memory_limit_bytes=None) is None
