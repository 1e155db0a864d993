"""Segments: runs of blocks that recur (CFP, section 4.1).

Runs of blocks with equal fingerprints (`fingerprints`) are segments of one kind: they have the same strategies and are
priced once. A greedy cover takes, again and again, the run whose repetitions cover most of what is left; the number of
its strategies is bounded, as all of them are priced.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxquard.intraop.blocks.block import Block
from jaxquard.intraop.blocks.graph import StepGraph
from jaxquard.intraop.blocks.match_backward import Matches
from jaxquard.intraop.segments.fingerprints import block_words, origins_of, producers

# All strategies of a segment are priced: four blocks of three choices, or of four in the two products of experts.
MAX_STRATEGIES = 3 * 3 * 4 * 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A run of blocks.

    Attributes:
        number: its place in the step.
        kind: segments of one kind are priced once.
        blocks: the numbers of its blocks.
    """

    number: int
    kind: int
    blocks: tuple[int, ...] = field(default=())


class BlockRuns:
    """Covers the blocks of a step with segments, for many meshes; the blocks are compared once.

    Args:
        matches: the gradients that backward contractions compute.
        owners: the block of each equation.
    """

    def __init__(self, graph: StepGraph, blocks: Sequence[Block], *, matches: Matches, owners: Sequence[int]) -> None:
        self._words = block_words(graph, blocks, matches, owners)
        self._crossing = _crossing(graph, blocks)
        self._found: dict[tuple[int, ...], list[tuple[int, int]]] = {}

    def find(self, counts: Sequence[int], *, max_strategies: int = MAX_STRATEGIES) -> tuple[Segment, ...]:
        """Returns segments, few of them unique.

        Args:
            counts: the strategies of each block.
            max_strategies: of a segment, unless it is one block.
        """
        key = (*counts, max_strategies)
        if key not in self._found:
            self._found[key] = cover(self._words, counts, max_strategies=max_strategies, crossing=self._crossing)
        return self._segments(self._found[key])

    def of_lengths(self, lengths: Sequence[int]) -> tuple[Segment, ...]:
        """Returns segments of so many blocks each, as a plan has them."""
        stops = list(itertools.accumulate(lengths, initial=0))
        assert stops[-1] == len(self._words)
        return self._segments(list(itertools.pairwise(stops)))

    def _segments(self, runs: Sequence[tuple[int, int]]) -> tuple[Segment, ...]:
        kinds: dict[tuple[int, ...], int] = {}
        return tuple(
            Segment(
                number=number,
                kind=kinds.setdefault(tuple(self._words[start:stop]), len(kinds)),
                blocks=tuple(range(start, stop)),
            )
            for number, (start, stop) in enumerate(runs)
        )


def cover(
    words: Sequence[int], counts: Sequence[int], *, max_strategies: int, crossing: Sequence[int] | None = None
) -> list[tuple[int, int]]:
    """Splits a sequence into runs, so that few of them are unique.

    Args:
        words: a number for each block; equal numbers are alike.
        counts: the number of strategies of each block.
        max_strategies: limits the product of the counts in a run, unless the run is one block.
        crossing: for each block, how many values cross the boundary before it; by default the same everywhere.
    """
    crossing = [0] * len(words) if crossing is None else crossing
    runs: list[tuple[int, int]] = []
    gaps = [(0, len(words))]
    while gaps:
        found = _best_repetition(words, counts, gaps, max_strategies, crossing)
        if found is None:
            break
        runs.extend(found)
        gaps = _left(gaps, found)
    for start, stop in gaps:
        runs.extend(_split(counts, start, stop, max_strategies, crossing))
    return sorted(runs)


def _best_repetition(
    words: Sequence[int],
    counts: Sequence[int],
    gaps: list[tuple[int, int]],
    max_strategies: int,
    crossing: Sequence[int],
) -> list[tuple[int, int]] | None:
    """Returns the places of the run that covers most; of equals one with few values to cross, then the first."""
    best: tuple[tuple[int, int, int, int], list[tuple[int, int]]] | None = None
    longest = max(stop - start for start, stop in gaps)
    for length in range(1, longest + 1):
        places = _repetitions(words, counts, gaps, length, max_strategies)
        if not places:
            break
        for starts in places.values():
            if len(starts) < 2:
                continue
            key = (len(starts) * length, -crossing[starts[0]], length, -starts[0])
            if best is None or key > best[0]:
                best = key, [(start, start + length) for start in starts]
    return None if best is None else best[1]


def _repetitions(
    words: Sequence[int], counts: Sequence[int], gaps: list[tuple[int, int]], length: int, max_strategies: int
) -> dict[tuple[int, ...], list[int]]:
    """Returns for each run of a length the places where it stands, without overlaps."""
    places: dict[tuple[int, ...], list[int]] = {}
    for first, last in gaps:
        for start in range(first, last - length + 1):
            if length > 1 and math.prod(counts[start : start + length]) > max_strategies:
                continue
            starts = places.setdefault(tuple(words[start : start + length]), [])
            if not starts or starts[-1] + length <= start:
                starts.append(start)
    return places


def _left(gaps: list[tuple[int, int]], runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Returns the gaps that the runs leave."""
    left = []
    for start, stop in gaps:
        for first, last in sorted(runs):
            if start <= first and last <= stop:
                if first > start:
                    left.append((start, first))
                start = last
        if start < stop:
            left.append((start, stop))
    return left


def _split(
    counts: Sequence[int], start: int, stop: int, max_strategies: int, crossing: Sequence[int]
) -> list[tuple[int, int]]:
    """Splits blocks that do not repeat into few runs, where few values cross."""
    # For each place, the minimum of the values that cross up to there, the number of runs, and where the last begins.
    best: dict[int, tuple[int, int, int]] = {start: (0, 0, start)}
    for end in range(start + 1, stop + 1):
        found = [
            (best[first][0] + (crossing[first] if first > start else 0), best[first][1] + 1, first)
            for first in range(start, end)
            if end - first == 1 or math.prod(counts[first:end]) <= max_strategies
        ]
        best[end] = min(found, key=lambda way: (way[0] + way[1], way[1], way[2]))
    runs = []
    end = stop
    while end > start:
        first = best[end][2]
        runs.append((first, end))
        end = first
    return runs[::-1]


def _crossing(graph: StepGraph, blocks: Sequence[Block]) -> list[int]:
    """Counts for each block the arrays that cross the boundary before it."""
    made_by = producers(graph, blocks)
    last_use = dict.fromkeys(made_by, -1)
    for block in blocks:
        taken = [graph.equations[position].invars[place] for position, place in block.choices[0].needs]
        taken += [atom for position in block.followers for atom in graph.equations[position].invars]
        for var in (origin for atom in taken for origin in origins_of(graph, atom, made_by)):
            last_use[var] = max(last_use[var], block.number)
    counts = [0] * len(blocks)
    for var, number in made_by.items():
        for boundary in range(number + 1, last_use[var] + 1):
            counts[boundary] += 1
    return counts
