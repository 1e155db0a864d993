"""Segments: runs of blocks that recur (CFP, section 4.1).

A block's fingerprint is what its contractions look like and how they depend on the contractions of the blocks before:
how far back, and along which dims; and, as a price is of forward, backward and update, which gradients there are of
them, whether they are computed again, and how much state of their shapes is replaced: a frozen layer is another one.
Runs with equal fingerprints have the same ways to be cut and communicate alike, whatever stands between their
contractions. A greedy cover takes, again and again, the run whose repetitions cover most of what is left; the number of
its strategies is bounded, as all of them are priced.
"""

import itertools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from jaxquard.intraop.blocks.backward_signature import later_work
from jaxquard.intraop.blocks.block import Block, Choice
from jaxquard.intraop.blocks.graph import StepGraph
from jaxquard.intraop.blocks.match_backward import Matches
from jaxquard.intraop.step.phases import Phase
from jaxquard.ir.jaxpr_tools import Equation, Var, is_var, variables
from jaxquard.ir.operations import MATMULS

# All strategies of a segment are priced: four blocks of three choices, or of four in the two products of experts.
MAX_STRATEGIES = 3 * 3 * 4 * 4
# Blocks so far back count as equally far: an encoder's memory, for every layer of the decoder but the first.
_FAR = 8
# What is no contraction that begins a block, and may take as long: grouped convolutions, products by experts.
_HEAVY = MATMULS - {"dot_general"}


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


def find_segments(
    graph: StepGraph,
    blocks: Sequence[Block],
    *,
    matches: Matches,
    owners: Sequence[int],
    counts: Sequence[int] | None = None,
    max_strategies: int = MAX_STRATEGIES,
) -> list[Segment]:
    """Covers the blocks of a step with segments, few of them unique.

    Args:
        matches: what the backward contractions are to those of the forward.
        owners: the block of each equation.
        counts: the strategies of each block; by default its choices on one axis.
        max_strategies: of a segment, unless it is one block.
    """
    words = _words(graph, blocks, matches, owners)
    counts = [len(block.choices) for block in blocks] if counts is None else counts
    return _segments(words, cover(words, counts, max_strategies=max_strategies, crossing=_crossing(graph, blocks)))


def given_segments(
    graph: StepGraph, blocks: Sequence[Block], lengths: Sequence[int], *, matches: Matches, owners: Sequence[int]
) -> list[Segment]:
    """The segments of so many blocks each, as a plan has them."""
    stops = list(itertools.accumulate(lengths, initial=0))
    assert stops[-1] == len(blocks)
    return _segments(_words(graph, blocks, matches, owners), list(itertools.pairwise(stops)))


def _words(graph: StepGraph, blocks: Sequence[Block], matches: Matches, owners: Sequence[int]) -> list[int]:
    """A number for each block, the same for those that are alike, forward and after it."""
    numbers: dict[Hashable, int] = {}
    alike = zip(
        fingerprints(graph, blocks),
        _other_products(graph, blocks, owners),
        later_work(graph, blocks, matches, owners),
        strict=True,
    )
    return [numbers.setdefault(fingerprint, len(numbers)) for fingerprint in alike]


def _other_products(graph: StepGraph, blocks: Sequence[Block], owners: Sequence[int]) -> list[Hashable]:
    """For each block, what takes long in its forward and is no contraction."""
    found: dict[int, list[Hashable]] = {block.number: [] for block in blocks}
    for position, equation in enumerate(graph.equations):
        is_forward = graph.phases[position] is Phase.FORWARD
        if is_forward and equation.primitive.name in _HEAVY and position not in graph.contractions:
            found[owners[position]].append(_shape_of(equation))
    return [tuple(found[block.number]) for block in blocks]


def _segments(words: Sequence[int], runs: Sequence[tuple[int, int]]) -> list[Segment]:
    kinds: dict[tuple[int, ...], int] = {}
    return [
        Segment(
            number=number,
            kind=kinds.setdefault(tuple(words[start:stop]), len(kinds)),
            blocks=tuple(range(start, stop)),
        )
        for number, (start, stop) in enumerate(runs)
    ]


def cover(
    words: Sequence[int], counts: Sequence[int], *, max_strategies: int, crossing: Sequence[int] | None = None
) -> list[tuple[int, int]]:
    """Cuts a sequence into runs, so that few of them are unique.

    Args:
        words: what stands where; equal numbers are alike.
        counts: the strategies of each.
        max_strategies: what the product of the counts in a run may be, unless the run is one word.
        crossing: for each word, how much crosses the border before it; by default the same everywhere.
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
        runs.extend(_cut(counts, start, stop, max_strategies, crossing))
    return sorted(runs)


def fingerprints(graph: StepGraph, blocks: Sequence[Block]) -> list[Hashable]:
    """Of every block."""
    made_by = _makers(graph, blocks)
    by_number = {block.number: block for block in blocks}
    return [_fingerprint(graph, block, made_by, by_number) for block in blocks]


def _makers(graph: StepGraph, blocks: Sequence[Block]) -> dict[Var, int]:
    """For each value of a block or of what follows it, the block's number."""
    return {
        var: block.number
        for block in blocks
        for position in (*block.equations, *block.followers)
        for var in graph.equations[position].outvars
    }


def _fingerprint(graph: StepGraph, block: Block, made_by: dict[Var, int], blocks: dict[int, Block]) -> Hashable:
    places = {position: place for place, position in enumerate(block.contractions)}
    contractions = tuple(_shape_of(graph.equations[position]) for position in block.contractions)
    cuts = tuple(
        (choice.name, choice.num_chunks, tuple((cut.out_dim, cut.in_dims) for cut in choice.cuts))
        for choice in block.choices
    )
    sources = []
    for position, place in block.choices[0].needs:
        atom = graph.equations[position].invars[place]
        origin = _origin(graph, atom, made_by) if atom.aval.shape else None
        if origin is not None:
            wanted = tuple(choice.needs[position, place] for choice in block.choices)
            producer = blocks[made_by[origin]]
            given = tuple(_given(choice, origin) for choice in producer.choices)
            distance = _distance(block, producer.number)
            sources.append((places.get(position, -1), place, wanted, distance, given))
    return contractions, cuts, tuple(sources), _followers(graph, block, made_by)


def _followers(graph: StepGraph, block: Block, made_by: dict[Var, int]) -> Hashable:
    """The products that follow a block: what they look like, how each choice cuts them, and what they depend on."""
    found = []
    for position in block.followers:
        equation = graph.equations[position]
        if position in graph.contractions:
            cuts = tuple(_given(choice, equation.outvars[0]) for choice in block.choices)
            origins = (_origin(graph, atom, made_by) for atom in equation.invars)
            distances = tuple(None if origin is None else _distance(block, made_by[origin]) for origin in origins)
            found.append((_shape_of(equation), cuts, distances))
    return tuple(found)


def _distance(block: Block, producer: int) -> int:
    return min(block.number - producer, _FAR)


def _given(choice: Choice, var: Var) -> Hashable:
    """How a choice leaves a value of the block, or of what follows it."""
    return choice.dims[var] if var in choice.dims else choice.follower_dims.get(var, "open")


def _shape_of(equation: Equation) -> Hashable:
    """What tells products apart: also what a convolution's stride makes of the same inputs."""
    shapes = tuple((atom.aval.shape, str(atom.aval.dtype)) for atom in (*equation.invars, *equation.outvars))
    params = tuple((name, str(value)) for name, value in sorted(equation.params.items()))
    return equation.primitive.name, shapes, params


def _origin(graph: StepGraph, atom: Var, made_by: dict[Var, int]) -> Var | None:
    """The nearest value of another block that an input comes from, through what stands in no block."""
    return max(_origins(graph, atom, made_by), key=made_by.__getitem__, default=None)


def _origins(graph: StepGraph, atom: Var, made_by: dict[Var, int]) -> list[Var]:
    """All values of other blocks that an input comes from, through what stands in no block."""
    seen: set[Var] = set()
    waiting = [atom]
    found = []
    while waiting:
        var = waiting.pop()
        if not is_var(var) or var in seen:
            continue
        seen.add(var)
        if var in made_by:
            found.append(var)
        elif var in graph.definitions:
            waiting.extend(variables(graph.equations[graph.definitions[var]].invars))
    return found


def _best_repetition(
    words: Sequence[int],
    counts: Sequence[int],
    gaps: list[tuple[int, int]],
    max_strategies: int,
    crossing: Sequence[int],
) -> list[tuple[int, int]] | None:
    """The places of the run that covers most; of those that cover as much one with little to cross, then the first."""
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


def _cut(
    counts: Sequence[int], start: int, stop: int, max_strategies: int, crossing: Sequence[int]
) -> list[tuple[int, int]]:
    """Cuts what does not repeat into few runs, where little crosses."""
    # For each place, the least sum of what crosses on the way there, the number of runs, and where the last begins.
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
    """For each block, how many arrays the blocks before it hand to it and to those after it."""
    made_by = _makers(graph, blocks)
    last_use = dict.fromkeys(made_by, -1)
    for block in blocks:
        taken = [graph.equations[position].invars[place] for position, place in block.choices[0].needs]
        taken += [atom for position in block.followers for atom in graph.equations[position].invars]
        for var in (origin for atom in taken for origin in _origins(graph, atom, made_by)):
            last_use[var] = max(last_use[var], block.number)
    counts = [0] * len(blocks)
    for var, number in made_by.items():
        for border in range(number + 1, last_use[var] + 1):
            counts[border] += 1
    return counts
