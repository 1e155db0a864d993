"""Parallel blocks: operators whose partition follows from that of one contraction (CFP, section 3.1)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxquard.intraop.blocks.contraction import Contraction, Partition, PartitionKind
from jaxquard.intraop.blocks.graph import ShardedDims

# For inputs from outside, by the positions of an equation in the step and of the input in the equation, the dim along
# which the equation wants it sharded; None: replicated.
Needs = Mapping[tuple[int, int], int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One way to shard a block over one mesh axis.

    Attributes:
        name: the dim that is sharded: `rows`, `columns`, `contracted`, `batch 0`; or `scattered`: contracted, and the
            sum sharded by rows at once, as sequence parallelism does; `scattered columns`: the same by columns.
        partitions: of each of the block's first contractions.
        num_chunks: the block can be split into as many parts, or into any divisor of it.
        dims: for each value that the block computes, the dim that is sharded.
        needs: the dims along which the block wants what comes from outside.
        follower_dims, follower_needs: the same for what follows the block; empty for a product that this partition does
            not reach.
    """

    name: str
    partitions: tuple[Partition, ...]
    num_chunks: int
    dims: ShardedDims = field(repr=False)
    needs: Needs = field(repr=False)
    follower_dims: ShardedDims = field(default_factory=dict, repr=False)
    follower_needs: Needs = field(default_factory=dict, repr=False)

    @property
    def kind(self) -> PartitionKind:
        return self.partitions[0].kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A parallel block, of forward equations.

    Attributes:
        seeds: its first contractions; several where they share an input and meet again inside the block.
        contractions: the positions of all contractions in it, in order.
        equations: the positions of all equations in it, in order.
        choices: the ways to shard it that the paper has, which the search looks at.
        more_choices: others, for baselines.
        product_choices: `2d rows` and `2d columns`, which shard its first contractions over two axes together as a 2D
            product (`two_dimensional.py`); empty where it has none.
        followers: the positions of equations that are no part of the block but take the layout of its results
            (`follow_blocks`).
    """

    number: int
    seeds: tuple[Contraction, ...] = field(repr=False)
    contractions: tuple[int, ...]
    equations: tuple[int, ...] = field(repr=False)
    choices: tuple[Choice, ...]
    more_choices: tuple[Choice, ...] = ()
    product_choices: tuple[Choice, ...] = ()
    followers: tuple[int, ...] = field(default=(), repr=False)

    def choice(self, name: str) -> Choice:
        """Returns the choice with this name."""
        return next(choice for choice in self.all_choices if choice.name == name)

    @property
    def all_choices(self) -> tuple[Choice, ...]:
        """All ways to shard it, those of two axes together included."""
        return *self.choices, *self.more_choices, *self.product_choices

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the choices that the search looks at."""
        return tuple(choice.name for choice in self.choices)
