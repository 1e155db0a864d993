"""The search on the chain against trying everything, at depth, and what it refuses."""

import itertools
import math
import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxquard.errors import ShardingError
from jaxquard.intraop.search.chain import fastest_with, search_chain
from jaxquard.intraop.search.frontier import FrontierPoint
from jaxquard.intraop.search.priced_segment import PricedSegment
from tests.machine_pace import machine_pace
from tests.slow_but_for import slow_but_for


def price_choices(chain, choices):
    time_s, size_bytes, layout = 0.0, 0, None
    for segment, chosen in zip(chain, choices, strict=True):
        if layout is not None:
            time_s += float(segment.reshards_s[layout, segment.entries[chosen]])
        time_s += segment.times_s[chosen]
        size_bytes += segment.sizes_bytes[chosen]
        layout = segment.exits[chosen]
    return time_s, size_bytes


def search_exhaustively(chain, limit_bytes):
    """Time and size of every point of the frontier, and the minimum size of any plan."""
    plans = itertools.product(*(range(len(segment.times_s)) for segment in chain))
    prices = [price for price in (price_choices(chain, plan) for plan in plans) if price[0] < math.inf]
    fitting = sorted(price for price in prices if limit_bytes is None or price[1] <= limit_bytes)
    frontier = []
    for price in fitting:
        if not frontier or price[1] < frontier[-1][1]:
            frontier.append(price)
    return frontier, min((size_bytes for _, size_bytes in prices), default=None)


TIMES_S = st.one_of(
    st.integers(0, 4).map(float), st.sampled_from([0.1, 0.2, 0.3, 0.7]), st.floats(0, 1e3), st.just(math.inf)
)
SIZES_BYTES = st.one_of(st.integers(0, 6), st.integers(0, 2**40))


@st.composite
def segments(draw, previous_exits=None, max_strategies=5):
    num_strategies = draw(st.integers(1, max_strategies))
    num_entries, num_exits = draw(st.integers(1, 3)), draw(st.integers(1, 3))

    def per_strategy(values):
        return tuple(draw(st.lists(values, min_size=num_strategies, max_size=num_strategies)))

    reshards_s = None
    if previous_exits:
        cells = draw(st.lists(TIMES_S, min_size=previous_exits * num_entries, max_size=previous_exits * num_entries))
        reshards_s = np.array(cells).reshape(previous_exits, num_entries)
    return PricedSegment(
        times_s=per_strategy(TIMES_S),
        sizes_bytes=per_strategy(SIZES_BYTES),
        entries=per_strategy(st.integers(0, num_entries - 1)),
        exits=per_strategy(st.integers(0, num_exits - 1)),
        reshards_s=reshards_s,
    )


@st.composite
def chains(draw):
    """Up to five segments, some of them equal."""
    chain = [draw(segments())]
    for _ in range(draw(st.integers(0, 4))):
        recurring = chain[-1]
        if (
            recurring.reshards_s is not None
            and len(recurring.reshards_s) > max(recurring.exits)
            and draw(st.booleans())
        ):
            chain.append(recurring)
        else:
            chain.append(draw(segments(previous_exits=draw(st.just(3)))))
    return chain


def check_against_everything(chain, limit_bytes):
    expected, minimum_bytes = search_exhaustively(chain, limit_bytes)
    if not expected:
        match = "failed" if minimum_bytes is None else f"minimum memory need {minimum_bytes} bytes"
        with pytest.raises(ShardingError, match=match):
            search_chain(chain, memory_limit_bytes=limit_bytes)
        return
    found = search_chain(chain, memory_limit_bytes=limit_bytes)
    assert [(point.time_s, point.size_bytes) for point in found.points] == expected
    assert found.gap_s == 0.0
    for point in found.points:
        assert price_choices(chain, point.choices) == (point.time_s, point.size_bytes)
    alone = search_chain(chain, memory_limit_bytes=limit_bytes, max_points=1)
    assert (alone.best.time_s, alone.best.size_bytes) == expected[0]


@settings(max_examples=100)
@given(chain=chains(), data=st.data())
def test_every_plan_tried(chain, data):
    sizes_bytes = [segment.sizes_bytes for segment in chain]
    minimum_bytes, most_bytes = sum(map(min, sizes_bytes)), sum(map(max, sizes_bytes))
    limit_bytes = data.draw(st.none() | st.integers(max(0, minimum_bytes - 1), most_bytes + 1), label="limit")
    check_against_everything(chain, limit_bytes)


@given(seed=st.integers(0, 2**32), share=st.floats(0, 1), times=st.sampled_from(["random", "falling", "line"]))
def test_every_plan_of_equal_layers_tried(seed, share, times):
    chain = random_chain(seed, num_layers=3, num_strategies=8, num_layouts=2, times=times)
    _, minimum_bytes = search_exhaustively(chain, None)
    most_bytes = sum(max(segment.sizes_bytes) for segment in chain)
    check_against_everything(chain, int(minimum_bytes + share * (most_bytes - minimum_bytes)))


def random_chain(seed, *, num_layers, num_strategies=81, num_layouts=3, times="random", is_equal=True):
    """An embedding, layers and a head, with times that know nothing of the sizes, or that fall with them."""
    rng = np.random.default_rng(seed)

    def segment(num_strategies, is_first=False):
        sizes_bytes = rng.integers(10**8, 8 * 10**8, num_strategies)
        falling_s = 1e-2 - 1e-11 * sizes_bytes
        times_s = {
            "random": rng.uniform(1e-3, 4e-3, num_strategies),
            "falling": falling_s + rng.uniform(0, 2e-3, num_strategies),
            "line": falling_s,
        }[times]
        return PricedSegment(
            times_s=tuple(times_s.tolist()),
            sizes_bytes=tuple(sizes_bytes.tolist()),
            entries=tuple(index * num_layouts // num_strategies for index in range(num_strategies)),
            exits=tuple(index % num_layouts for index in range(num_strategies)),
            reshards_s=None
            if is_first
            else rng.uniform(0, 5e-4, (num_layouts, num_layouts)) * (1 - np.eye(num_layouts)),
        )

    first, layer = segment(num_layouts, is_first=True), segment(num_strategies)
    layers = [layer if is_equal else segment(num_strategies) for _ in range(num_layers)]
    return [first, *layers, segment(num_layouts)]


def limit_at(chain, share):
    """A limit between the smallest plan and the fastest."""
    ends = search_chain(chain, memory_limit_bytes=None, max_points=2)
    return int(ends.smallest.size_bytes + share * (ends.best.size_bytes - ends.smallest.size_bytes))


@pytest.mark.thin(2)
@pytest.mark.parametrize("is_equal", [True, False])
@pytest.mark.parametrize("times", slow_but_for(["random", "falling"], ["falling"]))
def test_96_layers(times, is_equal):
    chain = random_chain(0, num_layers=96, times=times, is_equal=is_equal)
    started_s = time.process_time()
    found = search_chain(chain, memory_limit_bytes=None)
    assert time.process_time() - started_s < 10 * machine_pace()
    limit_bytes = limit_at(chain, 0.3)
    started_s = time.process_time()
    limited = search_chain(chain, memory_limit_bytes=limit_bytes)
    assert time.process_time() - started_s < 30 * machine_pace()
    assert limited.best.size_bytes <= limit_bytes
    assert limited.gap_s == 0.0
    for frontier in (found, limited):
        points = frontier.points
        assert all(a.time_s < b.time_s and a.size_bytes > b.size_bytes for a, b in itertools.pairwise(points))
        assert all(price_choices(chain, point.choices) == (point.time_s, point.size_bytes) for point in points)


def test_best_of_96_layers_alone_is_quick():
    chain = random_chain(1, num_layers=96)
    started_s = time.process_time()
    found = search_chain(chain, memory_limit_bytes=None, max_points=1)
    assert time.process_time() - started_s < 10 * machine_pace()
    assert found.best.time_s == search_chain(chain, memory_limit_bytes=None).best.time_s


def test_equal_segments_take_different_strategies():
    layer = {"times_s": (1.0, 2.0), "sizes_bytes": (10, 4), "entries": (0, 0), "exits": (0, 0)}
    chain = [PricedSegment(**layer), *[PricedSegment(**layer, reshards_s=np.zeros((1, 1)))] * 3]
    found = search_chain(chain, memory_limit_bytes=30)
    assert (found.best.time_s, found.best.size_bytes) == (6.0, 28)
    assert sorted(found.best.choices) == [0, 0, 1, 1]
    assert [(point.time_s, point.size_bytes) for point in found.points] == [(6.0, 28), (7.0, 22), (8.0, 16)]
    assert found.smallest == FrontierPoint(time_s=8.0, size_bytes=16, choices=(1, 1, 1, 1))


def test_answers_twice_the_same():
    chain = random_chain(2, num_layers=20)
    limit_bytes = limit_at(chain, 0.5)
    assert search_chain(chain, memory_limit_bytes=limit_bytes) == search_chain(chain, memory_limit_bytes=limit_bytes)


@pytest.mark.parametrize("max_points", [2, 10, 50])
def test_samples_of_a_long_frontier(max_points):
    """Real plans, close to the true frontier, whose ends are exact."""
    chain = random_chain(3, num_layers=12)
    whole = search_chain(chain, memory_limit_bytes=None, max_points=10_000)
    assert len(whole.points) > 50
    sampled = search_chain(chain, memory_limit_bytes=None, max_points=max_points)
    assert 2 <= len(sampled.points) <= max_points
    assert (sampled.best.time_s, sampled.smallest.size_bytes) == (whole.best.time_s, whole.smallest.size_bytes)
    for point in sampled.points:
        assert price_choices(chain, point.choices) == (point.time_s, point.size_bytes)
        fastest_s = min(other.time_s for other in whole.points if other.size_bytes <= point.size_bytes)
        assert fastest_s <= point.time_s <= 1.02 * fastest_s


def test_prices_on_a_line_leave_a_small_gap(monkeypatch):
    monkeypatch.setattr("jaxquard.intraop.search.chain._MAX_PARTIALS", 3000)
    chain = random_chain(4, num_layers=40, num_strategies=9, times="line")
    limit_bytes = limit_at(chain, 0.5)
    found = search_chain(chain, memory_limit_bytes=limit_bytes)
    assert 0 < found.gap_s < 1e-3 * found.best.time_s
    assert found.best.size_bytes <= limit_bytes


def test_nothing_fits():
    chain = [PricedSegment(times_s=(1.0, 2.0), sizes_bytes=(2**31, 2**30), entries=(0, 0), exits=(0, 0))]
    with pytest.raises(ShardingError) as caught:
        search_chain(chain, memory_limit_bytes=2**29)
    assert str(caught.value) == (
        "memory_limit_bytes=536870912 (0.50 GiB) is too little: of all strategies of all segments, those of minimum "
        "memory need 1073741824 bytes (1.00 GiB). Raise the limit to at least that, use more devices, or a smaller "
        "batch."
    )
    assert search_chain(chain, memory_limit_bytes=2**30).best.choices == (1,)


def test_all_candidates_failed():
    first = PricedSegment(times_s=(1.0,), sizes_bytes=(1,), entries=(0,), exits=(0,))
    failed = PricedSegment(times_s=(math.inf,), sizes_bytes=(1,), entries=(0,), exits=(0,), reshards_s=np.zeros((1, 1)))
    with pytest.raises(ShardingError, match=r"segment 1 of 2 needs a strategy with a finite time, but all .* failed"):
        search_chain([first, failed], memory_limit_bytes=None)
    apart = PricedSegment(
        times_s=(1.0,), sizes_bytes=(1,), entries=(0,), exits=(0,), reshards_s=np.full((1, 1), math.inf)
    )
    with pytest.raises(
        ShardingError, match="segment 1 of 2 cannot be entered: every reshard from segment 0 to it failed"
    ):
        search_chain([first, apart], memory_limit_bytes=None)


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
    limit_bytes = None if share is None else limit_at(chain, share)
    places = [1, 2, 3]
    for strategy in range(8):
        found = fastest_with(chain, places, strategy, memory_limit_bytes=limit_bytes)
        expected, _ = search_exhaustively(held(chain, places, strategy), limit_bytes)
        if not expected:
            assert found is None
        else:
            assert (found.time_s, found.size_bytes) == expected[0]
            assert {found.choices[place] for place in places} == {strategy}


def test_a_strategy_without_a_price():
    chain = random_chain(0, num_layers=2, num_strategies=4, num_layouts=2)
    chain[1:3] = [replace(chain[1], times_s=(math.inf, *chain[1].times_s[1:]))] * 2
    assert fastest_with(chain, [1, 2], 0, memory_limit_bytes=None) is None
