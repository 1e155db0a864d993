"""Context parallelism: blocks sharded along the sequence, in steps whose attention is long.

    q, k, v = x wq, x wk, x wv      each device has the tokens of its part of the sequence
    s = q k^T                       sharded by queries: every device needs all keys, so the compiler gathers them
    o = softmax(s) v                and all values; their gradients are summed and scattered

The rows of a product can be batch and sequence, and the partition takes the one along which the block grows largest:
the batch, as a partition along the sequence ends at the first product of two tokens. This choice carries the other one
through the same equations. Where the sharded dims of two operands lead to different dims of a product, one operand is
gathered; the same side is taken in the whole block, the one for which fewer elements are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from jaxquard.intraop.blocks.block import Block, Choice
from jaxquard.intraop.blocks.contraction import Partition, PartitionKind
from jaxquard.intraop.blocks.graph import StepGraph
from jaxquard.intraop.blocks.grow_block import find_needs
from jaxquard.ir.jaxpr_tools import Var

SEQUENCE = "sequence"


def shard_sequences(graph: StepGraph, blocks: Sequence[Block], *, num_shards: int) -> tuple[Block, ...]:
    """Returns the blocks with the choice to shard the sequence, if that can be worth it; otherwise as they are.

    It can be where attention is the larger part of a block's work (`has_long_attention`).
    """
    if not has_long_attention(graph, blocks):
        return tuple(blocks)
    return tuple(_with_sequence(graph, block, num_shards) for block in blocks)


def has_long_attention(graph: StepGraph, blocks: Sequence[Block]) -> bool:
    """Returns true if a block has as many multiplications of tokens with tokens as in its first contractions."""
    return any(_is_long(graph, block) for block in blocks)


def _is_long(graph: StepGraph, block: Block) -> bool:
    first = {seed.position for seed in block.seeds}
    others = [graph.contractions[position] for position in block.contractions if position not in first]
    of_tokens = sum(one.weight for one in others if not one.has_state)
    return of_tokens >= sum(seed.weight for seed in block.seeds)


def _with_sequence(graph: StepGraph, block: Block, num_shards: int) -> Block:
    partitions = _sequence_partitions(block, num_shards)
    if partitions is None:
        return block
    walks = [_Walk(num_shards=num_shards, takes_last=last).run(graph, block, partitions) for last in (False, True)]
    walk = min(walks, key=lambda one: one.num_gathered)
    choice = Choice(
        name=SEQUENCE,
        partitions=partitions,
        num_chunks=walk.num_chunks,
        dims=walk.dims,
        needs=find_needs(graph, block.equations, block.seeds, partitions, walk.dims),
    )
    return replace(block, more_choices=(*block.more_choices, choice))


def _sequence_partitions(block: Block, num_shards: int) -> tuple[Partition, ...] | None:
    """Returns for each first contraction the largest dim of its rows but the one that `rows` shards."""
    rows = next((choice for choice in block.choices if choice.kind is PartitionKind.ROWS), None)
    if rows is None:
        return None
    found = []
    for seed, taken in zip(block.seeds, rows.partitions, strict=True):
        others = [
            one
            for group in seed.groups
            for one in group
            if one.kind is PartitionKind.ROWS and one != taken and one.size % num_shards == 0
        ]
        if not others:
            return None
        found.append(max(others, key=lambda one: one.size))
    return tuple(found)


@dataclass(kw_only=True)
class _Walk:
    """The dims of a block's values, filled in equation by equation.

    Attributes:
        takes_last: of two operands that lead to different dims, the last one decides, and not the first.
        num_gathered: the elements of operands whose partition ends.
    """

    num_shards: int
    takes_last: bool
    dims: dict[Var, int | None] = field(default_factory=dict)
    num_chunks: int = 0
    num_gathered: int = 0

    def run(self, graph: StepGraph, block: Block, partitions: Sequence[Partition]) -> "_Walk":
        first = {seed.position: one for seed, one in zip(block.seeds, partitions, strict=True)}
        for position in block.equations:
            if position in first:
                (out,) = graph.equations[position].outvars
                self.dims[out] = first[position].out_dim
                self.num_chunks = math.gcd(self.num_chunks, first[position].size)
            else:
                self._carry(graph, position)
        return self

    def _carry(self, graph: StepGraph, position: int) -> None:
        for output, var in enumerate(graph.equations[position].outvars):
            arriving = graph.arrivals(position, output, self.dims, self.num_shards)
            leading = [link for _, link in arriving if link is not None]
            self.dims[var] = chosen = leading[-1 if self.takes_last else 0].out_dim if leading else None
            for atom, link in arriving:
                if link is None or link.out_dim != chosen:
                    self.num_gathered += math.prod(atom.aval.shape)
                else:
                    self.num_chunks = math.gcd(self.num_chunks, link.num_chunks)
