"""Groups the forward of a step into parallel blocks (CFP, algorithm 1 and section 3.3).

Contractions are taken in the order of the program. One that an earlier block has is skipped; the others begin blocks,
if they are large enough (`worth_a_block`). One that is not is an input branch of the next block, or, if it multiplies
two activations, follows the block before (`follow_blocks`).

Contractions that share the input that data flows through, and whose results meet inside the block (separate Q, K and V;
gate and up), begin one block together. Keys and values with fewer heads than there are devices stay whole on each under
the choice of columns, which shards the queries. Where several dims can stand for the rows or the columns, the partition
takes the one with which the block grows largest.

Large enough are contractions of data with state that do not count next to nothing (a router). The measure is the
largest contraction that recurs with other weights: a product of the layers. The head of a language model may be a
hundred times as large as the smallest of these, and is there once; two models in one step, as for distillation, have
two of them.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

from jaxquard.errors import InfeasibleShardingError
from jaxquard.intraop.blocks.block import Block, Choice
from jaxquard.intraop.blocks.contraction import Contraction, Partition, PartitionKind
from jaxquard.intraop.blocks.follow_blocks import follow_blocks
from jaxquard.intraop.blocks.graph import StepGraph
from jaxquard.intraop.blocks.grow_block import Growth, find_needs, grow_block, shard_shared, trim_block
from jaxquard.intraop.blocks.parameter_paths import equation_place
from jaxquard.intraop.blocks.shard_sequence import has_long_attention, shard_sequences
from jaxquard.intraop.blocks.two_dimensional import product_choices
from jaxquard.ir.jaxpr_tools import Var, is_var, variables
from jaxquard.ir.source import source_line

# A contraction with fewer multiplications than this part of the measure begins no block.
_MINIMUM_SHARE = 32
# Products of layers have at least this part of the largest of all. Less is no measure, however often it recurs.
_MINIMUM_MEASURE = 512
# They differ by less than this, from one to the next larger: what is so much larger are heads.
_FAR_LARGER = 8


def worth_a_block(graph: StepGraph) -> dict[int, None]:
    """Returns the positions of contractions that may begin blocks, in order."""
    contractions = graph.contractions
    has_state = any(found.has_state and not found.is_lookup for found in contractions.values())
    candidates = {position: found for position, found in contractions.items() if found.has_state or not has_state}
    measures = {
        False: _measure(graph, [found for found in candidates.values() if not found.is_lookup]),
        True: max((found.weight for found in candidates.values() if found.is_lookup), default=0),
    }
    return dict.fromkeys(
        position for position, found in candidates.items() if found.weight * _MINIMUM_SHARE >= measures[found.is_lookup]
    )


def _measure(graph: StepGraph, contractions: list[Contraction]) -> int:
    """Returns the multiplications of the largest product of a layer; of the largest of all if no layer recurs."""
    counts = Counter(weight for weight, _ in {(found.weight, _state(graph, found)) for found in contractions})
    largest = max(counts, default=0)
    recurring = sorted((weight for weight, count in counts.items() if count > 1), reverse=True)
    in_layers = [weight for weight in recurring if weight * _MINIMUM_MEASURE >= largest]
    while len(in_layers) > 1 and in_layers[0] > _FAR_LARGER * in_layers[1]:
        del in_layers[0]
    return in_layers[0] if in_layers else largest


def _state(graph: StepGraph, contraction: Contraction) -> Var | int:
    """Returns the state that a contraction multiplies by, before casts and transposes."""
    inputs = contraction.equation.invars
    atom = inputs[1 - contraction.data] if len(inputs) > 1 else None
    if atom is None or not is_var(atom):
        return contraction.position
    while (position := graph.definitions.get(atom)) is not None:
        sources = variables(graph.equations[position].invars)
        if len(sources) != 1:
            break
        atom = sources[0]
    return graph.first(atom)


# A block may have so many equations while dims are compared: a partition along the batch carries through the model.
_LOOK_AHEAD = 256


def find_blocks(graph: StepGraph, *, num_shards: int, fewest_shards: int | None = None) -> tuple[Block, ...]:
    """Returns the blocks of a step, in the order of the program.

    Args:
        num_shards: the size of the mesh axis over which blocks are sharded; the largest of several.
        fewest_shards: the size of the smallest axis. In a step with long attention the rows may be a batch that this
            one alone divides, as the larger axis then shards the sequence.

    Raises:
        InfeasibleShardingError: if a contraction has no dim that so many devices divide.
    """
    blocks = tuple(_Finder(graph, num_shards).find())
    if fewest_shards is not None and _has_small_batch(graph, num_shards, fewest_shards):
        others = tuple(_Finder(graph, num_shards, fewest_shards).find())
        blocks = others if has_long_attention(graph, others) else blocks
    blocks = shard_sequences(graph, blocks, num_shards=num_shards)
    return follow_blocks(graph, blocks, num_shards=num_shards)


def _has_small_batch(graph: StepGraph, num_shards: int, fewest_shards: int) -> bool:
    return any(
        one.kind is PartitionKind.ROWS and one.size % num_shards and one.size % fewest_shards == 0
        for contraction in graph.contractions.values()
        for group in contraction.groups
        for one in group
    )


class _Finder:
    def __init__(self, graph: StepGraph, num_shards: int, fewest_shards: int | None = None):
        self.graph = graph
        self.num_shards = num_shards
        self.fewest_shards = fewest_shards or num_shards
        self.grouped_bits = 0
        self.grouped: set[int] = set()
        self.by_input: dict[object, list[Contraction]] = {}
        self.best_partitions: dict[Hashable, int] = {}
        self.seeds = worth_a_block(graph)
        self.others = 0
        for position, contraction in graph.contractions.items():
            if position in self.seeds:
                self.by_input.setdefault(self._data(contraction), []).append(contraction)
            else:
                self.others |= graph.bit(position)

    def find(self) -> Iterable[Block]:
        number = 0
        for position in self.seeds:
            contraction = self.graph.contractions[position]
            if position not in self.grouped:
                block = self._block(number, contraction)
                self.grouped.update(block.equations)
                for inner in block.contractions:
                    self.grouped_bits |= self.graph.bit(inner)
                number += 1
                yield block

    def _data(self, contraction: Contraction) -> object:
        atom = contraction.equation.invars[contraction.data]
        return self.graph.first(atom) if is_var(atom) else id(contraction)

    def _block(self, number: int, seed: Contraction) -> Block:
        seeds = [seed, *self._siblings(seed)]
        if len(seeds) > 1:
            together = self._partitions(seeds)
            met = self._grow(seeds, together, undivided=self._undivided(seeds)).component(0) if together else 1
            seeds = [sibling for place, sibling in enumerate(seeds) if met >> place & 1]
        partitions = self._partitions(seeds)
        if not partitions:
            raise InfeasibleShardingError(_nothing_divides(self.graph, seeds[0], self.num_shards))
        growth = self._grow(seeds, partitions, undivided=self._undivided(seeds))
        trim_block(self.graph, growth, keep={seed.position for seed in seeds})
        for place, of_choice in enumerate(partitions):
            if len({one.out_dim is None for one in of_choice}) > 1:
                shard_shared(self.graph, growth, place, num_shards=self.num_shards)
        return _make_block(self.graph, number, seeds, partitions, growth)

    def _siblings(self, seed: Contraction) -> list[Contraction]:
        """Returns later contractions of the same input, with the same partitions, that wait for no other."""
        ready = self.grouped_bits | self.others
        return [
            other
            for other in self.by_input[self._data(seed)]
            if other.position > seed.position
            and other.position not in self.grouped
            and _kinds(other) == _kinds(seed)
            and not self.graph.ancestors[other.position] & ~(ready | self.graph.bit(other.position))
        ]

    def _partitions(self, seeds: Sequence[Contraction]) -> list[tuple[Partition, ...]]:
        """Returns the ways to shard contractions together, one for each kind that divides."""
        found = []
        for groups in zip(*(seed.groups for seed in seeds), strict=True):
            fitting = [[one for one in group if self._divides(one)] for group in groups]
            best = self._best(seeds, fitting) if all(fitting) else None
            if groups[0][0].kind is PartitionKind.COLUMNS:
                best = self._with_shared(seeds, fitting, best) or best
            if best is not None:
                found.append(best)
        return found

    def _with_shared(
        self, seeds: Sequence[Contraction], fitting: list[list[Partition]], best: tuple[Partition, ...] | None
    ) -> tuple[Partition, ...] | None:
        """Returns all contractions sharded by columns but the narrowest, which every device computes whole.

        So are keys and values with fewer heads than there are devices, for queries that are sharded by heads. None if
        the block grows as large with all of them sharded, or the others are not there for those that are.
        """
        widths = [_num_columns(seed) for seed in seeds]
        is_shared = [width == min(widths) for width in widths]
        if all(is_shared) or any(not (group or shared) for group, shared in zip(fitting, is_shared, strict=True)):
            return None
        sharded = [group[0] for group, shared in zip(fitting, is_shared, strict=True) if not shared]
        whole = replace(sharded[0], out_dim=None, in_dims=(None,) * len(sharded[0].in_dims))
        partitions = tuple(whole if shared else group[0] for group, shared in zip(fitting, is_shared, strict=True))
        key = tuple(_form(seed) for seed in seeds), (partitions, best)
        if key not in self.best_partitions:
            self.best_partitions[key] = self._num_more(seeds, partitions, best)
        return partitions if self.best_partitions[key] > 0 else None

    def _num_more(
        self, seeds: Sequence[Contraction], partitions: tuple[Partition, ...], than: tuple[Partition, ...] | None
    ) -> int:
        """Returns how many equations more a block has with some contractions whole; 0 if these do not meet others."""
        growth = self._grow(seeds, [partitions], limit=_LOOK_AHEAD)
        met = growth.component(0)
        kinds = {one.out_dim is None for place, one in enumerate(partitions) if met >> place & 1}
        first = {seed.position for seed in seeds}
        products = [position for position in growth.positions if position in self.graph.contractions]
        outs = [self.graph.equations[position].outvars[0] for position in products if position not in first]
        if len(kinds) < 2 or any(growth.dims[0][out] is None for out in outs):
            return 0
        fewer = 0 if than is None else len(self._grow(seeds, [than], limit=_LOOK_AHEAD).positions)
        return len(growth.positions) - fewer

    def _divides(self, partition: Partition) -> bool:
        fewest = self.fewest_shards if partition.kind is PartitionKind.ROWS else self.num_shards
        return partition.size % self.num_shards == 0 or partition.size % fewest == 0

    def _undivided(self, seeds: Sequence[Contraction]) -> list[tuple[Partition, ...]]:
        """Returns the ways to shard contractions for which this mesh is too large: they still end the block."""
        return [
            tuple(group[0] for group in groups)
            for groups in zip(*(seed.groups for seed in seeds), strict=True)
            if any(not any(map(self._divides, group)) for group in groups)
            and all(group[0].size > 1 for group in groups)
        ]

    def _best(self, seeds: Sequence[Contraction], fitting: list[list[Partition]]) -> tuple[Partition, ...]:
        """Returns the partitions, one per contraction, with which the block grows largest.

        Of equals the first, but for the time that a loop runs over: of its outputs, the batch.

        Contractions of the same form from the same line of code are compared once: layers are alike.
        """
        longest = max(map(len, fitting))
        candidates = [tuple(group[min(place, len(group) - 1)] for group in fitting) for place in range(longest)]
        if len(candidates) == 1 or candidates[0][0].kind is PartitionKind.CONTRACTED:
            return candidates[0]
        key = tuple(_form(seed) for seed in seeds), tuple(candidates)
        if key not in self.best_partitions:
            sizes = [len(self._grow(seeds, [one], limit=_LOOK_AHEAD).positions) for one in candidates]
            equals = [place for place, size in enumerate(sizes) if size == max(sizes)]
            self.best_partitions[key] = min(
                equals, key=lambda place: self._comes_of_loop(seeds[0], candidates[place][0])
            )
        return candidates[self.best_partitions[key]]

    def _comes_of_loop(self, seed: Contraction, partition: Partition) -> bool:
        """Returns true if a dim of the data ends at a loop before it, as the time does that the loop runs over."""
        waiting, seen = [(seed.equation.invars[seed.data], partition.in_dims[seed.data])], set[int]()
        while waiting and len(seen) < _LOOK_AHEAD:
            var, dim = waiting.pop()
            position = self.graph.definitions.get(var) if is_var(var) else None
            if position is None or position in seen:
                continue
            seen.add(position)
            equation = self.graph.equations[position]
            inputs = self.graph.inputs_of(position, equation.outvars.index(var), dim, self.num_shards)
            sources = [(atom, in_dim) for atom, in_dim in inputs if in_dim is not None]
            if not sources and equation.primitive.name in ("scan", "while"):
                return True
            waiting += sources
        return False

    def _grow(
        self,
        seeds: Sequence[Contraction],
        choices: Sequence[Sequence[Partition]],
        *,
        undivided: Sequence[Sequence[Partition]] = (),
        limit: int | None = None,
    ) -> Growth:
        return grow_block(
            self.graph,
            seeds,
            choices,
            undivided=undivided,
            num_shards=self.num_shards,
            fewest_shards=self.fewest_shards,
            grouped=self.grouped_bits | self.others,
            is_grouped=self.grouped.__contains__,
            limit=limit,
        )


# The names of choices that shard the contracted dim, and whose sums are sharded along another one.
SCATTERED = {PartitionKind.ROWS: "scattered", PartitionKind.COLUMNS: "scattered columns"}


def _num_columns(contraction: Contraction) -> int:
    return math.prod(one.size for group in contraction.groups for one in group if one.kind is PartitionKind.COLUMNS)


def _form(contraction: Contraction) -> Hashable:
    equation = contraction.equation
    shapes = tuple(atom.aval.shape for atom in equation.invars)
    return source_line(equation), equation.primitive.name, shapes, str(equation.params.get("dimension_numbers"))


def _kinds(contraction: Contraction) -> list[str]:
    return [group[0].name for group in contraction.groups]


def _make_block(
    graph: StepGraph,
    number: int,
    seeds: Sequence[Contraction],
    partitions: Sequence[tuple[Partition, ...]],
    growth: Growth,
) -> Block:
    choices = [
        Choice(
            name=of_choice[0].name,
            partitions=of_choice,
            num_chunks=chunks,
            dims=dims,
            needs=find_needs(graph, growth.positions, seeds, of_choice, dims),
        )
        # The growth has more than these: the partitions that do not divide.
        for of_choice, chunks, dims in zip(partitions, growth.num_chunks, growth.dims, strict=False)
    ]
    product, more = product_choices(seeds, choices), _scattered(seeds, choices)
    if any(seed.is_ragged for seed in seeds):
        choices += _scattered(seeds, choices, along=PartitionKind.COLUMNS)
    return Block(
        number=number,
        seeds=tuple(seeds),
        contractions=tuple(position for position in growth.positions if position in graph.contractions),
        equations=tuple(growth.positions),
        choices=tuple(choices),
        more_choices=more,
        product_choices=product,
    )


def _scattered(
    seeds: Sequence[Contraction], choices: Sequence[Choice], *, along: PartitionKind = PartitionKind.ROWS
) -> tuple[Choice, ...]:
    """Returns the choice to shard the contracted dim and leave the sum sharded by rows: sequence parallelism.

    Args:
        along: columns instead for rows that are sorted by expert: they go back to their places without communication.
    """
    found = {choice.kind: choice for choice in choices}
    scattered, contracted = found.get(along), found.get(PartitionKind.CONTRACTED)
    if scattered is None or contracted is None:
        return ()
    first = {seed.position for seed in seeds}
    needs = {key: (contracted if key[0] in first else scattered).needs[key] for key in scattered.needs}
    choice = Choice(
        name=SCATTERED[along],
        partitions=contracted.partitions,
        num_chunks=math.gcd(scattered.num_chunks, contracted.num_chunks if along is PartitionKind.COLUMNS else 0),
        dims=scattered.dims,
        needs=needs,
    )
    return (choice,)


def _nothing_divides(graph: StepGraph, seed: Contraction, num_shards: int) -> str:
    sizes = ", ".join(
        f"{kind} {' x '.join(str(one.size) for one in group)}"
        for kind, group in ((group[0].name, group) for group in seed.groups)
    )
    return (
        f"the contraction at {equation_place(graph, seed.equation)} has no dim that {num_shards} devices can share "
        f"evenly: {sizes}. Use a mesh axis whose size divides one of them, or pad the dim."
    )
