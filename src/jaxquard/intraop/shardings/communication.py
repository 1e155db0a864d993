"""Where a step communicates, under any choice for its blocks: sums over devices, and values that change their layout.

Every value of the forward has one holder: the block that makes it, or else the first block that needs it, to which it
is carried back as in `layouts`. A holder decides how the value is cut.

    sums     the results of contractions whose contracted dim is cut;
             gradients of what a block takes whole, while what it makes of it is cut: of weights if rows are cut, of
             the data if columns are; once for all uses in the block
    moves    a block wants a value otherwise than its holder has it; forward, and its gradient back

What follows a block (`follow_blocks`) is held by it; under a choice whose cut does not go on to it, it counts as whole,
and takes its inputs as they come.

Left out: statistics of norms and softmax, the loss, and what a checkpoint computes again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import jax.numpy as jnp

from jaxquard.intraop.blocks.block import Block, Choice, Needs
from jaxquard.intraop.blocks.contraction import Kind
from jaxquard.intraop.blocks.graph import StepGraph
from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.ir.jaxpr_tools import Var, is_var, size_bytes

# In place of a dim: wanted as it comes.
AS_IT_COMES = -1
Dims = tuple[int | None, ...]
Cuts = Mapping[Var, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sum:
    """A value, or its gradient, that is added up over devices.

    Attributes:
        dims: per choice of the block, how the value is cut.
        is_summed: per choice of the block, whether there is such a sum.
    """

    block: int
    value: Var = field(repr=False)
    size_bytes: int
    dims: Dims
    is_summed: tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A value that one block holds, and another one, or the same one elsewhere, wants.

    Attributes:
        held, wanted: per choice of the holder, or the taker, how the value is cut; the taker may want it as it comes.
        is_summed_by_holder, is_summed: per choice of the holder, or the taker, whether its part of the gradient is a
            sum over devices; if both are, and the layout is the same, the parts are added first.
        has_gradient: whether a gradient moves back.
    """

    holder: int
    taker: int
    value: Var = field(repr=False)
    size_bytes: int
    held: Dims
    wanted: Dims
    is_summed_by_holder: tuple[bool, ...]
    is_summed: tuple[bool, ...]
    has_gradient: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication:
    """All sums and moves of a step."""

    sums: tuple[Sum, ...]
    moves: tuple[Move, ...]


def all_choices(block: Block) -> tuple[Choice, ...]:
    """Those that are searched, then the others; the order in all of this file."""
    return (*block.choices, *block.more_choices)


def find_communication(analysis: Analysis) -> Communication:
    """The sums and moves of a step.

    All axes are taken to cut what the largest one can.
    """
    finder = _Finder(analysis)
    for block in analysis.blocks:
        finder.visit(block)
    return Communication(sums=tuple(finder.sums()), moves=tuple(finder.all_moves()))


class _Finder:
    def __init__(self, analysis: Analysis):
        self.blocks = analysis.blocks
        self.graph = analysis.graph
        self.num_parts = max(analysis.axes.values())
        self.from_inputs, self.with_gradient = _trace_inputs(analysis.graph)
        self.holders: dict[Var, tuple[int, Dims]] = {}
        self.summed: dict[tuple[int, Var], tuple[bool, ...]] = {}
        self.moves: dict[tuple[int, Var], Dims] = {}
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

    def _visit(self, number: int, positions: Sequence[int], dims: Sequence[Cuts], needs: Sequence[Needs]) -> None:
        """Takes what equations need; `dims` and `needs` are per choice."""
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

    def sums(self) -> Iterable[Sum]:
        for block in self.blocks:
            for seed in block.seeds:
                (out,) = seed.equation.outvars
                yield self._sum(block.number, out, tuple(c.kind is Kind.CONTRACTED for c in all_choices(block)))
        for (number, var), is_summed in self.summed.items():
            if self.holders[var][0] == number:
                yield self._sum(number, var, is_summed)

    def all_moves(self) -> Iterable[Move]:
        for (taker, var), wanted in self.moves.items():
            holder, held = self.holders[var]
            no_sums = (False,) * len(wanted)
            yield Move(
                holder=holder,
                taker=taker,
                value=var,
                size_bytes=size_bytes(var.aval),
                held=held,
                wanted=wanted,
                is_summed_by_holder=self.summed.get((holder, var), (False,) * len(held)),
                is_summed=no_sums if holder == taker else self.summed.get((taker, var), no_sums),
                has_gradient=var in self.with_gradient,
            )

    def _sum(self, number: int, var: Var, is_summed: tuple[bool, ...]) -> Sum:
        dims = self.holders[var][1]
        return Sum(block=number, value=var, size_bytes=size_bytes(var.aval), dims=dims, is_summed=is_summed)

    def _want(self, number: int, var: Var, wanted: Dims) -> None:
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
                    self.moves.setdefault((number, var), wanted)
                continue
            self.holders[var] = number, tuple(None if dim == AS_IT_COMES else dim for dim in wanted)
            position = self.graph.definitions.get(var)
            if position is not None:
                for atom, of_atom in self._inputs(position, var, wanted):
                    self._note_sum(number, atom, of_atom, [wanted])
                    waiting.append((atom, of_atom))

    def _inputs(self, position: int, var: Var, wanted: Dims) -> Iterable[tuple[Var, Dims]]:
        """How the inputs of an equation are wanted if one of its outputs is."""
        equation = self.graph.equations[position]
        output = equation.outvars.index(var)
        found = self.graph.links(position)
        for atom, links, is_read in zip(equation.invars, found.links[output], found.reads[output], strict=True):
            if is_read:
                carried = {
                    link.out_dim: link.in_dim for link in reversed(links) if link.num_chunks % self.num_parts == 0
                }
                carried[AS_IT_COMES] = AS_IT_COMES
                yield atom, tuple(None if dim is None else carried.get(dim) for dim in wanted)

    def _is_uneven(self, var: Var, dim: int | None) -> bool:
        return dim is not None and dim != AS_IT_COMES and var.aval.shape[dim] % self.num_parts != 0

    def _note_sum(self, number: int, atom: Var, dims: Dims, outs: list[Dims]) -> None:
        """Notes under which choices the gradient of a value is a sum: it is whole, and what is made of it is cut."""
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
    """What depends on the step's inputs, and of this what has a gradient: floating-point values made from state."""
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
