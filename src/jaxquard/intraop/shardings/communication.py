"""The communication of a step under any choice for its blocks: all-reduces, and values that are resharded.

Every value of the forward has one holder: the block that computes it, or else the first block that needs it, to which
it is propagated back as in `layouts`. The holder decides the layout of the value.

    all-reduces   of the results of contractions whose contracted dim is sharded;
                  of gradients of what a block takes replicated while its outputs are sharded: of weights if rows are
                  sharded, of the data if columns are; once for all uses in the block
    reshards      of values that a block wants in another layout than their holder's; forward, and the gradient back;
                  of weights that are stored along another dim than their view is sharded (`StepGraph.storage_link`)

What follows a block (`follow_blocks`) is held by it; under a choice whose sharding does not reach it, it counts as
replicated, and takes its inputs as they come.

Left out: statistics of norms and softmax, the loss, and what a checkpoint recomputes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import jax.numpy as jnp

from jaxquard.intraop.blocks.block import Block, Choice, Needs, ShardedDims
from jaxquard.intraop.blocks.contraction import PartitionKind
from jaxquard.intraop.blocks.graph import StepGraph
from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.ir.dependence import can_partition
from jaxquard.ir.jaxpr_tools import Var, is_var, size_bytes

# In place of a dim: wanted as it comes.
AS_IT_COMES = -1
# The dim along which a value is sharded, per choice of a block.
DimPerChoice = tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduce:
    """A value, or its gradient, that is summed over devices.

    Attributes:
        dims: per choice of the block, the dim along which the value is sharded.
        is_summed: per choice of the block, whether there is such a sum.
    """

    block: int
    value: Var = field(repr=False)
    size_bytes: int
    dims: DimPerChoice
    is_summed: tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reshard:
    """A value that one block holds, and another one, or the same one elsewhere, wants.

    Attributes:
        held: per choice of the holder, the dim along which the value is sharded.
        wanted: per choice of the consumer, the same; the consumer may want it as it comes.
        is_summed_by_holder, is_summed: per choice of the holder, or the consumer, whether its part of the gradient is a
            sum over devices; if both are, and the layout is the same, the parts are added first.
        has_gradient: whether a gradient moves back.
    """

    holder: int
    consumer: int
    value: Var = field(repr=False)
    size_bytes: int
    held: DimPerChoice
    wanted: DimPerChoice
    is_summed_by_holder: tuple[bool, ...]
    is_summed: tuple[bool, ...]
    has_gradient: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """All all-reduces and reshards of a step."""

    all_reduces: tuple[AllReduce, ...]
    reshards: tuple[Reshard, ...]


def all_choices(block: Block) -> tuple[Choice, ...]:
    """Returns the choices of a block that are searched, then the others; the order in all of this file."""
    return (*block.choices, *block.more_choices)


def find_communication(analysis: Analysis) -> Communication:
    """Returns the all-reduces and reshards of a step.

    All axes are taken to shard what the largest one can.
    """
    finder = _Finder(analysis)
    for block in analysis.blocks:
        finder.visit(block)
    return Communication(all_reduces=tuple(finder.all_reduces()), reshards=tuple(finder.reshards()))


class _Finder:
    def __init__(self, analysis: Analysis):
        self.blocks = analysis.blocks
        self.graph = analysis.graph
        self.num_shards = max(analysis.axes.values())
        self.from_inputs, self.with_gradient = _trace_inputs(analysis.graph)
        self.holders: dict[Var, tuple[int, DimPerChoice]] = {}
        self.summed: dict[tuple[int, Var], tuple[bool, ...]] = {}
        self.resharded: dict[tuple[int, Var], DimPerChoice] = {}
        for block in analysis.blocks:
            for position in block.equations:
                for var in self.graph.equations[position].outvars:
                    self.holders[var] = block.number, tuple(choice.dims[var] for choice in all_choices(block))
            for position in block.followers:
                for var in self.graph.equations[position].outvars:
                    dims = tuple(choice.follower_dims.get(var) for choice in all_choices(block))
                    self.holders[var] = block.number, dims

    def visit(self, block: Block) -> None:
        choices = all_choices(block)
        made = [var for position in block.followers for var in self.graph.equations[position].outvars]
        self._visit(block.number, block.equations, [choice.dims for choice in choices], [c.needs for c in choices])
        self._visit(
            block.number,
            block.followers,
            [dict.fromkeys(made, AS_IT_COMES) | dict(choice.follower_dims) for choice in choices],
            [choice.follower_needs for choice in choices],
        )

    def _visit(
        self, number: int, positions: Sequence[int], dims: Sequence[ShardedDims], needs: Sequence[Needs]
    ) -> None:
        """Records what equations need; `dims` and `needs` are per choice."""
        for position in positions:
            equation = self.graph.equations[position]
            outs = [self.holders[var][1] for var in equation.outvars]
            for place, atom in enumerate(equation.invars):
                if not is_var(atom) or not atom.aval.shape:
                    continue
                is_inside = atom in dims[0]
                key = position, place
                wanted = tuple(
                    of_value[atom] if is_inside else of_input.get(key, AS_IT_COMES)
                    for of_value, of_input in zip(dims, needs, strict=True)
                )
                self._note_sum(number, atom, wanted, outs)
                if not is_inside:
                    self._want(number, atom, wanted)

    def all_reduces(self) -> Iterable[AllReduce]:
        for block in self.blocks:
            for seed in block.seeds:
                (out,) = seed.equation.outvars
                yield self._all_reduce(
                    block.number, out, tuple(c.kind is PartitionKind.CONTRACTED for c in all_choices(block))
                )
        for (number, var), is_summed in self.summed.items():
            if self.holders[var][0] == number:
                yield self._all_reduce(number, var, is_summed)

    def reshards(self) -> Iterable[Reshard]:
        for (consumer, var), wanted in self.resharded.items():
            holder, held = self.holders[var]
            no_sums = (False,) * len(wanted)
            yield Reshard(
                holder=holder,
                consumer=consumer,
                value=var,
                size_bytes=size_bytes(var.aval),
                held=held,
                wanted=wanted,
                is_summed_by_holder=self.summed.get((holder, var), (False,) * len(held)),
                is_summed=no_sums if holder == consumer else self.summed.get((consumer, var), no_sums),
                has_gradient=var in self.with_gradient,
            )

    def _all_reduce(self, number: int, var: Var, is_summed: tuple[bool, ...]) -> AllReduce:
        dims = self.holders[var][1]
        return AllReduce(block=number, value=var, size_bytes=size_bytes(var.aval), dims=dims, is_summed=is_summed)

    def _want(self, number: int, var: Var, wanted: DimPerChoice) -> None:
        """Takes a value from its holder; where it has none, the block holds it, and wants what it is made of."""
        waiting = [(var, wanted)]
        while waiting:
            var, wanted = waiting.pop()
            if not is_var(var) or not var.aval.shape:
                continue
            wanted = tuple(None if self._is_uneven(var, dim) else dim for dim in wanted)
            if var in self.holders:
                holder = self.holders[var]
                if var in self.from_inputs and holder != (number, wanted):
                    self.resharded.setdefault((number, var), wanted)
                continue
            position = self.graph.definitions.get(var)
            if position is not None:
                wanted = self._stored(number, position, var, wanted)
            self.holders[var] = number, tuple(None if dim == AS_IT_COMES else dim for dim in wanted)
            if position is not None:
                for atom, of_atom in self._inputs(position, var, wanted):
                    self._note_sum(number, atom, of_atom, [wanted])
                    waiting.append((atom, of_atom))

    def _stored(self, number: int, position: int, var: Var, wanted: DimPerChoice) -> DimPerChoice:
        """Returns the dims of a view of state as it is stored; the view is resharded to those that are wanted."""
        link = self.graph.storage_link(position, self.num_shards)
        if link is None:
            return wanted
        (((*links,),),) = self.graph.links(position).links
        kept = {None, AS_IT_COMES, *(one.out_dim for one in links if can_partition(one, self.num_shards))}
        stored = tuple(dim if dim in kept else link.out_dim for dim in wanted)
        if stored != wanted:
            self.resharded[number, var] = wanted
        return stored

    def _inputs(self, position: int, var: Var, wanted: DimPerChoice) -> Iterable[tuple[Var, DimPerChoice]]:
        """Yields the inputs of an equation with the dims that follow from those of an output."""
        equation = self.graph.equations[position]
        output = equation.outvars.index(var)
        found = self.graph.links(position)
        for atom, links, is_read in zip(equation.invars, found.links[output], found.reads[output], strict=True):
            if is_read:
                carried = {
                    link.out_dim: link.in_dim for link in reversed(links) if can_partition(link, self.num_shards)
                }
                carried[AS_IT_COMES] = AS_IT_COMES
                yield atom, tuple(None if dim is None else carried.get(dim) for dim in wanted)

    def _is_uneven(self, var: Var, dim: int | None) -> bool:
        return dim is not None and dim != AS_IT_COMES and var.aval.shape[dim] % self.num_shards != 0

    def _note_sum(self, number: int, atom: Var, dims: DimPerChoice, outs: list[DimPerChoice]) -> None:
        """Records the choices under which a gradient is a sum: the value is replicated, and its use is sharded."""
        if not is_var(atom) or not atom.aval.shape or atom not in self.with_gradient:
            return
        before = self.summed.get((number, atom), (False,) * len(dims))
        now = tuple(
            was or (dim is None and any(out[choice] is not None for out in outs))
            for choice, (was, dim) in enumerate(zip(before, dims, strict=True))
        )
        if any(now):
            self.summed[number, atom] = now


def _trace_inputs(graph: StepGraph) -> tuple[set[Var], set[Var]]:
    """Returns what depends on the step's inputs, and of this what has a gradient: floats that depend on state."""
    from_inputs = set(graph.step.jaxpr.invars)
    with_gradient = set(filter(_is_floating, graph.state))
    for equation in graph.equations:
        inputs = {atom for atom in equation.invars if is_var(atom)}
        if not from_inputs.isdisjoint(inputs):
            from_inputs.update(equation.outvars)
        if not with_gradient.isdisjoint(inputs):
            with_gradient.update(var for var in equation.outvars if _is_floating(var))
    return from_inputs, with_gradient


def _is_floating(var: Var) -> bool:
    return hasattr(var.aval, "dtype") and jnp.issubdtype(var.aval.dtype, jnp.floating)
