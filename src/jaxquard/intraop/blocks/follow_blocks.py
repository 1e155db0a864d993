"""Products of two activations that no block could take follow the last block that they depend on.

    h = ...                             of a block that is sharded along b
    m = gate h                          in no block, as a sum over d stands before it
    x = einsum bsec,bsd->ebcd m h       follows: sharded along b too, computed where the tokens are
    y = einsum ebcd,edm->ebcm x w       begins a block that may be sharded along e: an all-to-all of x before it

Such a product is no input branch of the block after it (CFP, section 3.3): with a layout propagated back from there,
every device would need all of `h`. It is sharded along a batch dim of its own, which needs shards of both operands: the
one at which the block's partition arrives, or else the first one (`einsum bsec,ebcd->bsd` of experts that are sharded
along e: a sum over devices otherwise). Where no partition arrives, as the block leaves its results replicated or the
partition has ended before, later blocks decide as they do for input branches. What comes after the product joins as it
would join a block.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from jaxquard.intraop.blocks.block import Block, Choice
from jaxquard.intraop.blocks.contraction import Contraction, Partition, PartitionKind
from jaxquard.intraop.blocks.graph import StepGraph
from jaxquard.intraop.blocks.grow_block import Growth, find_needs, grow_block, trim_block
from jaxquard.ir.jaxpr_tools import Var, is_var

# In place of a dim, of a value at which a partition has ended, and of all that is computed from it.
_ENDED = -1


def follow_blocks(graph: StepGraph, blocks: Sequence[Block], *, num_shards: int) -> tuple[Block, ...]:
    """Returns the blocks with what follows them."""
    follower = _Follower(graph, blocks, num_shards)
    for contraction in graph.contractions.values():
        follower.visit(contraction)
    return tuple(follower.blocks)


class _Follower:
    def __init__(self, graph: StepGraph, blocks: Sequence[Block], num_shards: int):
        self.graph = graph
        self.blocks = list(blocks)
        self.num_shards = num_shards
        self.taken = {position for block in blocks for position in block.equations}
        # All values in blocks, and of what follows them.
        self.outside: dict[Var, int | None] = dict.fromkeys(_outputs(graph, self.taken))
        self.bits = [sum(graph.bit(position) for position in block.contractions) for block in blocks]
        self.in_blocks = sum(self.bits)

    def visit(self, product: Contraction) -> None:
        """Gives a product to the block that it follows, if it follows one."""
        if product.position in self.taken or not self._is_of_activations(product):
            return
        ancestors = self.graph.ancestors[product.position]
        number = max(number for number, bits in enumerate(self.bits) if bits & ancestors)
        partitions = [
            one
            for group in product.groups
            for one in group
            if one.out_dim is not None and one.size % self.num_shards == 0
        ]
        if partitions:
            block = self.blocks[number]
            growth = self._grow(product, partitions, number)
            choices, more, of_product = (
                tuple(self._follow(product, partitions, growth, choice) for choice in of_block)
                for of_block in (block.choices, block.more_choices, block.product_choices)
            )
            followers = (*block.followers, *growth.positions)
            self.blocks[number] = replace(
                block, choices=choices, more_choices=more, product_choices=of_product, followers=followers
            )
            self.taken.update(growth.positions)
            self.outside |= dict.fromkeys(_outputs(self.graph, growth.positions))

    def _is_of_activations(self, product: Contraction) -> bool:
        sources = [self.graph.definitions.get(atom) for atom in product.equation.invars if is_var(atom)]
        depends = [source is not None and self.graph.ancestors[source] & self.in_blocks for source in sources]
        return not product.is_lookup and len(depends) == 2 and all(depends)

    def _grow(self, product: Contraction, partitions: Sequence[Partition], number: int) -> Growth:
        later = sum(self.bits[number + 1 :])
        growth = grow_block(
            self.graph,
            [product],
            [[one] for one in partitions],
            num_shards=self.num_shards,
            grouped=~later,
            is_grouped=lambda position: position in self.taken or position in self.graph.contractions,
        )
        trim_block(self.graph, growth, keep={product.position})
        return growth

    def _follow(self, product: Contraction, partitions: Sequence[Partition], growth: Growth, choice: Choice) -> Choice:
        """Returns the choice with the layout of what follows, if its partition arrives."""
        known = {**self.outside, **choice.dims, **choice.follower_dims}
        arriving = arriving_dims(self.graph, product, known, num_shards=self.num_shards)
        number = _batch_partition(partitions, arriving)
        if number is None:
            return choice
        dims = growth.dims[number]
        needs = find_needs(self.graph, growth.positions, [product], [partitions[number]], dims)
        return replace(
            choice,
            follower_dims={**choice.follower_dims, **dims},
            follower_needs={**choice.follower_needs, **needs},
        )


def _outputs(graph: StepGraph, positions: Iterable[int]) -> list[Var]:
    return [var for position in positions for var in graph.equations[position].outvars]


def _batch_partition(partitions: Sequence[Partition], arriving: Sequence[int | None]) -> int | None:
    """Returns which partition a product takes, given the dims along which its operands are sharded; None for none."""
    if all(dim is None for dim in arriving):
        return None
    batch = [number for number, one in enumerate(partitions) if one.kind is PartitionKind.BATCH]
    meeting = [
        number for number in batch if any(a == b for a, b in zip(partitions[number].in_dims, arriving, strict=True))
    ]
    return next(iter(meeting or batch), None)


def arriving_dims(
    graph: StepGraph, product: Contraction, known: Mapping[Var, int | None], *, num_shards: int
) -> list[int | None]:
    """Carries partitions of blocks to the operands of a product, through what stands in no block.

    Args:
        known: the dims of all values in blocks.
    """
    sources = graph.sources(product.equation.invars, known.keys())
    between = {graph.definitions[var] for var in sources if var in graph.definitions and var not in known}
    dims: dict[Var, int | None] = {var: known[var] for var in sources if var in known}
    for position in sorted(between):
        for output, var in enumerate(graph.equations[position].outvars):
            arriving = graph.arrivals(position, output, dims, num_shards)
            found = {_ENDED if link is None else link.out_dim for _, link in arriving} or {None}
            dims[var] = found.pop() if len(found) == 1 else _ENDED
    arrived = [dims.get(atom) if is_var(atom) else None for atom in product.equation.invars]
    return [None if dim == _ENDED else dim for dim in arrived]
