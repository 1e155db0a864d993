"""Products of two activations that no block could take follow the last block that they depend on.

    h = ...                             of a block that is cut along b
    m = gate h                          in no block, as a sum over d stands before it
    x = einsum bsec,bsd->ebcd m h       follows: cut along b too, computed where the tokens are
    y = einsum ebcd,edm->ebcm x w       begins a block that may be cut along e: x goes from all to all before it

Such a product is no input branch of the block after it (CFP, section 3.3): laid out backward from there, every device
would need all of `h`. It is cut along a batch dim of its own, which needs parts of both operands: the one at which the
block's cut arrives, or else the first one (`einsum bsec,ebcd->bsd` of experts that are cut along e: a sum over devices
otherwise). Where no cut arrives, as the block leaves its results whole or the cut has ended on the way, later blocks
decide as they do for input branches. What comes after the product is taken along as a block would.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from jaxquard.intraop.blocks.block import Block, Choice
from jaxquard.intraop.blocks.contraction import Contraction, Cut, Kind
from jaxquard.intraop.blocks.graph import StepGraph
from jaxquard.intraop.blocks.grow_block import Growth, find_needs, grow_block, trim_block
from jaxquard.ir.jaxpr_tools import Var, is_var

Dims = Mapping[Var, int | None]


def follow_blocks(graph: StepGraph, blocks: Sequence[Block], *, num_parts: int) -> tuple[Block, ...]:
    """The blocks with what follows them."""
    follower = _Follower(graph, blocks, num_parts)
    for contraction in graph.contractions.values():
        follower.visit(contraction)
    return tuple(follower.blocks)


class _Follower:
    def __init__(self, graph: StepGraph, blocks: Sequence[Block], num_parts: int):
        self.graph = graph
        self.blocks = list(blocks)
        self.num_parts = num_parts
        self.taken = {position for block in blocks for position in block.equations}
        self.bits = [sum(graph.bit(position) for position in block.contractions) for block in blocks]
        self.in_blocks = sum(self.bits)

    def visit(self, product: Contraction) -> None:
        """Gives a product to the block that it follows, if it follows one."""
        if product.position in self.taken or not self._is_of_activations(product):
            return
        ancestors = self.graph.ancestors[product.position]
        number = max(number for number, bits in enumerate(self.bits) if bits & ancestors)
        cuts = [
            cut
            for group in product.groups
            for cut in group
            if cut.out_dim is not None and cut.size % self.num_parts == 0
        ]
        if cuts:
            block = self.blocks[number]
            growth = self._grow(product, cuts, number)
            choices, more = (
                tuple(self._follow(product, cuts, growth, choice) for choice in of_block)
                for of_block in (block.choices, block.more_choices)
            )
            followers = (*block.followers, *growth.positions)
            self.blocks[number] = replace(block, choices=choices, more_choices=more, followers=followers)
            self.taken.update(growth.positions)

    def _is_of_activations(self, product: Contraction) -> bool:
        sources = [self.graph.definitions.get(atom) for atom in product.equation.invars if is_var(atom)]
        depends = [source is not None and self.graph.ancestors[source] & self.in_blocks for source in sources]
        return not product.is_lookup and len(depends) == 2 and all(depends)

    def _grow(self, product: Contraction, cuts: Sequence[Cut], number: int) -> Growth:
        later = sum(self.bits[number + 1 :])
        growth = grow_block(
            self.graph,
            [product],
            [[cut] for cut in cuts],
            num_parts=self.num_parts,
            grouped=~later,
            is_grouped=lambda position: position in self.taken or position in self.graph.contractions,
        )
        trim_block(self.graph, growth, keep={product.position})
        return growth

    def _follow(self, product: Contraction, cuts: Sequence[Cut], growth: Growth, choice: Choice) -> Choice:
        """The choice with the layout of what follows, if its cut arrives."""
        known = {**choice.dims, **choice.follower_dims}
        arriving = _Arrival(self.graph, known, self.taken, self.num_parts).dims(product)
        number = _batch_cut(cuts, arriving)
        if number is None:
            return choice
        dims = growth.dims[number]
        needs = find_needs(self.graph, growth.positions, [product], [cuts[number]], dims)
        return replace(
            choice,
            follower_dims={**choice.follower_dims, **dims},
            follower_needs={**choice.follower_needs, **needs},
        )


def _batch_cut(cuts: Sequence[Cut], arriving: Sequence[int | None]) -> int | None:
    """Which cut a product takes, given the dims along which its operands arrive; None if none does."""
    if all(dim is None for dim in arriving):
        return None
    batch = [number for number, cut in enumerate(cuts) if cut.kind is Kind.BATCH]
    meeting = [number for number in batch if any(a == b for a, b in zip(cuts[number].in_dims, arriving, strict=True))]
    return next(iter(meeting or batch), None)


class _Arrival:
    """Carries the cut of a block to the operands of a product, through what stands in no block."""

    def __init__(self, graph: StepGraph, known: Dims, taken: set[int], num_parts: int):
        self.graph = graph
        self.known = dict(known)
        self.taken = taken
        self.num_parts = num_parts

    def dims(self, product: Contraction) -> list[int | None]:
        between = self._between(product)
        for position in between:
            equation = self.graph.equations[position]
            for output, var in enumerate(equation.outvars):
                self.known[var] = self._carry(position, output)
        return [self.known.get(atom) if is_var(atom) else None for atom in product.equation.invars]

    def _between(self, product: Contraction) -> list[int]:
        """What stands between the block and a product, in order."""
        found: set[int] = set()
        waiting = [product.position]
        while waiting:
            for atom in self.graph.equations[waiting.pop()].invars:
                source = self.graph.definitions.get(atom) if is_var(atom) and atom not in self.known else None
                if source is not None and source not in self.taken and source not in found:
                    found.add(source)
                    waiting.append(source)
        return sorted(found)

    def _carry(self, position: int, output: int) -> int | None:
        """The dim of an output to which the cuts of inputs lead; None if there is none, or they do not agree."""
        equation = self.graph.equations[position]
        links = self.graph.links(position)
        found: set[int] = set()
        for atom, of_input in zip(equation.invars, links.links[output], strict=True):
            dim = self.known.get(atom) if is_var(atom) else None
            if dim is not None:
                fitting = (link for link in of_input if link.in_dim == dim and link.num_chunks % self.num_parts == 0)
                found.update(link.out_dim for link in fitting)
        return found.pop() if len(found) == 1 else None
