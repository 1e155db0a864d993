"""Segments: runs of blocks that recur (CFP, section 4.1).

A block's fingerprint is what its contractions look like and how they depend on the contractions of the blocks before:
how far back, and along which dims. Runs with equal fingerprints have the same ways to be cut and communicate alike,
whatever stands between their contractions. A greedy cover takes, again and again, the run whose repetitions cover most
of what is left; the number of its strategies is bounded, as all of them are priced.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from jaxquard.intraop.block import Block
from jaxquard.intraop.graph import StepGraph
from jaxquard.ir.jaxpr_tools import Equation, Var, is_var, variables

# All strategies of a segment are priced: four blocks of three choices, or of four where one has a batch dim.
MAX_STRATEGIES = 4 * 3**3 * 3


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


def find_segments(graph: StepGraph, blocks: Sequence[Block], *, max_strategies: int = MAX_STRATEGIES) -> list[Segment]:
    """Covers the blocks of a step with segments, few of them unique."""
    prints = fingerprints(graph, blocks)
    numbers: dict[Hashable, int] = {}
    words = [numbers.setdefault(fingerprint, len(numbers)) for fingerprint in prints]
    counts = [len(block.choices) for block in blocks]
    runs = cover(words, counts, max_strategies=max_strategies)
    kinds: dict[tuple[int, ...], int] = {}
    return [
        Segment(
            number=number,
            kind=kinds.setdefault(tuple(words[start:stop]), len(kinds)),
            blocks=tuple(range(start, stop)),
        )
        for number, (start, stop) in enumerate(runs)
    ]


def cover(words: Sequence[int], counts: Sequence[int], *, max_strategies: int) -> list[tuple[int, int]]:
    """Cuts a sequence into runs, so that few of them are unique.

    Args:
        words: what stands where; equal numbers are alike.
        counts: the strategies of each.
        max_strategies: what the product of the counts in a run may be, unless the run is one word.
    """
    runs: list[tuple[int, int]] = []
    gaps = [(0, len(words))]
    while gaps:
        found = _best_repetition(words, counts, gaps, max_strategies)
        if found is None:
            break
        runs.extend(found)
        gaps = _left(gaps, found)
    for start, stop in gaps:
        runs.extend(_cut(counts, start, stop, max_strategies))
    return sorted(runs)


def fingerprints(graph: StepGraph, blocks: Sequence[Block]) -> list[Hashable]:
    """Of every block."""
    made_by = {
        var: block.number
        for block in blocks
        for position in block.equations
        for var in graph.equations[position].outvars
    }
    by_number = {block.number: block for block in blocks}
    return [_fingerprint(graph, block, made_by, by_number) for block in blocks]


def _fingerprint(graph: StepGraph, block: Block, made_by: dict[Var, int], blocks: dict[int, Block]) -> Hashable:
    places = {position: place for place, position in enumerate(block.contractions)}
    contractions = tuple(_shape_of(graph.equations[position]) for position in block.contractions)
    cuts = tuple((choice.name, tuple((cut.out_dim, cut.in_dims) for cut in choice.cuts)) for choice in block.choices)
    sources = []
    for position in block.equations:
        for place, atom in enumerate(graph.equations[position].invars):
            if (position, place) not in block.choices[0].needs or not atom.aval.shape:
                continue
            wanted = tuple(choice.needs[position, place] for choice in block.choices)
            origin = _origin(graph, atom, made_by)
            if origin is not None:
                producer = blocks[made_by[origin]]
                given = tuple(choice.dims[origin] for choice in producer.choices)
                sources.append((places.get(position, -1), place, wanted, block.number - producer.number, given))
    return contractions, cuts, tuple(sources)


def _shape_of(equation: Equation) -> Hashable:
    shapes = tuple((atom.aval.shape, str(atom.aval.dtype)) for atom in equation.invars)
    return equation.primitive.name, shapes, str(equation.params.get("dimension_numbers"))


def _origin(graph: StepGraph, atom: Var, made_by: dict[Var, int]) -> Var | None:
    """The nearest value of another block that an input comes from, through what stands in no block."""
    seen: set[Var] = set()
    waiting = [atom]
    best: Var | None = None
    while waiting:
        var = waiting.pop()
        if not is_var(var) or var in seen:
            continue
        seen.add(var)
        if var in made_by:
            if best is None or made_by[var] > made_by[best]:
                best = var
        elif var in graph.definitions:
            waiting.extend(variables(graph.equations[graph.definitions[var]].invars))
    return best


def _best_repetition(
    words: Sequence[int], counts: Sequence[int], gaps: list[tuple[int, int]], max_strategies: int
) -> list[tuple[int, int]] | None:
    """The places of the run that covers most; of those that cover as much the longest, then the first."""
    best: tuple[tuple[int, int, int], list[tuple[int, int]]] | None = None
    longest = max(stop - start for start, stop in gaps)
    for length in range(1, longest + 1):
        places = _repetitions(words, counts, gaps, length, max_strategies)
        if not places:
            break
        for starts in places.values():
            if len(starts) < 2:
                continue
            key = (len(starts) * length, length, -starts[0])
            if best is None or key > best[0]:
                best = key, [(start, start + length) for start in starts]
    return None if best is None else best[1]


def _repetitions(
    words: Sequence[int], counts: Sequence[int], gaps: list[tuple[int, int]], length: int, max_strategies: int
) -> dict[tuple[int, ...], list[int]]:
    """For each run of a length, where it stands, without overlaps."""
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
    """What of the gaps the runs leave."""
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


def _cut(counts: Sequence[int], start: int, stop: int, max_strategies: int) -> list[tuple[int, int]]:
    """Cuts what does not repeat into runs as long as the bound allows."""
    runs = []
    while start < stop:
        end = start + 1
        while end < stop and math.prod(counts[start : end + 1]) <= max_strategies:
            end += 1
        runs.append((start, end))
        start = end
    return runs
