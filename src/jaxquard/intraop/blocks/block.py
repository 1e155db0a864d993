"""Parallel blocks: operators whose partition follows from that of one contraction (CFP, section 3.1)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxquard.intraop.blocks.contraction import Contraction, Cut, Kind
from jaxquard.ir.jaxpr_tools import Var

# For inputs from outside, by the positions of an equation in the step and of the input in the equation, the dim along
# which the equation wants it cut; None: whole.
Needs = Mapping[tuple[int, int], int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One way to cut a block over one mesh axis.

    Attributes:
        name: what is cut: `rows`, `columns`, `contracted`, `batch 0`; or `scattered`: contracted, and the sum cut by
            rows at once, as sequence parallelism does.
        cuts: of each of the block's first contractions.
        num_chunks: the block can be cut into as many parts, or into any divisor of it.
        dims: for each value that the block computes, the dim that is cut; None for one that is whole everywhere.
        needs: how the block wants what comes from outside.
        follower_dims, follower_needs: the same for what follows the block; nothing of a product to which this cut does
            not go on.
    """

    name: str
    cuts: tuple[Cut, ...]
    num_chunks: int
    dims: Mapping[Var, int | None] = field(repr=False)
    needs: Needs = field(repr=False)
    follower_dims: Mapping[Var, int | None] = field(default_factory=dict, repr=False)
    follower_needs: Needs = field(default_factory=dict, repr=False)

    @property
    def kind(self) -> Kind:
        return self.cuts[0].kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block, forward.

    Attributes:
        seeds: its first contractions; several where they share an input and meet again inside the block.
        contractions: the positions of all contractions in it, in order.
        equations: the positions of all equations in it, in order.
        choices: the ways to cut it that the paper has, which the search looks at.
        more_choices: others, for baselines.
        followers: the positions of equations that are no part of the block but are cut as it leaves its results
            (`follow_blocks`).
    """

    number: int
    seeds: tuple[Contraction, ...] = field(repr=False)
    contractions: tuple[int, ...]
    equations: tuple[int, ...] = field(repr=False)
    choices: tuple[Choice, ...]
    more_choices: tuple[Choice, ...] = ()
    followers: tuple[int, ...] = field(default=(), repr=False)

    def choice(self, name: str) -> Choice:
        """The choice with this name."""
        return next(choice for choice in (*self.choices, *self.more_choices) if choice.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the choices that the search looks at."""
        return tuple(choice.name for choice in self.choices)
