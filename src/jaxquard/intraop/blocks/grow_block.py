"""Grows a block from its first contractions through their users (CFP, algorithm 1).

An equation joins if every partition of the contractions carries through it: the sharded dims of its inputs are all
linked to one dim of its output, in enough chunks (equation (2), `can_partition`), and none of its other inputs comes
out of the block through an equation that did not join (the mean that a norm subtracts). Users are visited in the order
of the program, so that an equation is looked at when all its inputs in the block are known, and all of them are
visited, where the printed algorithm returns after the first. An equation that waits for a contraction of a later block
does not join.

`trim_block` then takes from the end of a block what the next block can as well compute for itself:

    b = add a c      in the block, and used after it
    d = mul b b      in the block, and used only after it: leaves, so that one value crosses instead of two
"""

import heapq
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from jaxquard.intraop.blocks.block import Needs
from jaxquard.intraop.blocks.contraction import Contraction, Partition
from jaxquard.intraop.blocks.graph import ShardedDims, StepGraph
from jaxquard.intraop.step.phases import EquationPhase
from jaxquard.ir.jaxpr_tools import Var, is_var, variables


@dataclass(kw_only=True)
class Growth:
    """A block while it grows.

    Attributes:
        positions: of its equations.
        dims: per choice, the dim that is sharded of each value in the block; then for partitions that do not divide.
        num_chunks: per choice, the number of equal parts into which it can be split.
        reached_by: for each value, which of the first contractions it depends on, as bits.
        together: sets of first contractions that meet.
    """

    positions: list[int] = field(default_factory=list)
    dims: list[dict[Var, int | None]]
    num_chunks: list[int]
    reached_by: dict[Var, int] = field(default_factory=dict)
    together: list[int] = field(default_factory=list)

    def component(self, seed: int) -> int:
        """Returns the first contractions that meet this one in the block, as bits."""
        found = 1 << seed
        while True:
            wider = found
            for met in self.together:
                if met & wider:
                    wider |= met
            if wider == found:
                return found
            found = wider


def grow_block(
    graph: StepGraph,
    seeds: Sequence[Contraction],
    choices: Sequence[Sequence[Partition]],
    *,
    undivided: Sequence[Sequence[Partition]] = (),
    num_shards: int,
    fewest_shards: int | None = None,
    grouped: int,
    is_grouped: Callable[[int], bool],
    limit: int | None = None,
) -> Growth:
    """Returns the largest block from these contractions.

    Args:
        choices: per choice, the partition of each of the contractions.
        undivided: partitions whose dim `num_shards` does not divide. They are no choices, but the block ends where they
            end, as the partitions that are left may carry through all that follows.
        num_shards: the number of devices that each partition must divide into.
        fewest_shards: the number for choices that `num_shards` does not divide.
        grouped: the contractions that stand in earlier blocks, as bits.
        is_grouped: returns true for an equation that stands in an earlier block.
        limit: at so many equations it stops growing.
    """
    every = [*choices, *undivided]
    num_shards_of = [
        num_shards if all(one.size % num_shards == 0 for one in partitions) else fewest_shards or num_shards
        for partitions in choices
    ] + [1] * len(undivided)
    growth = Growth(
        dims=[{} for _ in every],
        num_chunks=[math.gcd(*(one.size for one in partitions)) for partitions in every],
    )
    own = 0
    waiting: list[int] = []
    queued: set[int] = set()

    def push_users(var: Var) -> None:
        for position in graph.users.get(var, ()):
            if position not in queued:
                queued.add(position)
                heapq.heappush(waiting, position)

    for number, seed in enumerate(seeds):
        own |= graph.bit(seed.position)
        growth.positions.append(seed.position)
        queued.add(seed.position)
        (out,) = seed.equation.outvars
        growth.reached_by[out] = 1 << number
        for dims, partitions in zip(growth.dims, every, strict=True):
            dims[out] = partitions[number].out_dim
        push_users(out)
    while waiting and (limit is None or len(growth.positions) < limit):
        position = heapq.heappop(waiting)
        if graph.phases[position] is not EquationPhase.FORWARD or is_grouped(position):
            continue
        bit = graph.bit(position) if position in graph.contractions else 0
        waits = graph.ancestors[position] & ~(grouped | own | bit)
        if waits or _comes_back(graph, growth, position, own) or not _join(graph, growth, position, num_shards_of):
            continue
        own |= bit
        for var in graph.equations[position].outvars:
            push_users(var)
    growth.positions.sort()
    return growth


def find_needs(
    graph: StepGraph,
    positions: Sequence[int],
    seeds: Sequence[Contraction],
    partitions: Sequence[Partition],
    dims: ShardedDims,
) -> Needs:
    """Returns the dims along which a block wants what comes from outside (section 3.3: input branches)."""
    needs: dict[tuple[int, int], int | None] = {}
    in_dims = {seed.position: one.in_dims for seed, one in zip(seeds, partitions, strict=True)}
    for position in positions:
        equation = graph.equations[position]
        for place, atom in enumerate(equation.invars):
            if not is_var(atom) or atom in dims:
                continue
            if position in in_dims:
                needs[position, place] = in_dims[position][place]
                continue
            wanted = {
                link.in_dim
                for var, of_output in zip(equation.outvars, graph.links(position).links, strict=True)
                for link in of_output[place]
                if link.out_dim == dims[var]
            }
            needs[position, place] = min(wanted) if wanted else None
    return needs


def _comes_back(graph: StepGraph, growth: Growth, position: int, own: int) -> bool:
    """Returns true if an input depends on the block, but does not stand in it."""
    for var in variables(graph.equations[position].invars):
        source = graph.definitions.get(var)
        if source is not None and var not in growth.reached_by and graph.ancestors[source] & own:
            return True
    return False


def _join(graph: StepGraph, growth: Growth, position: int, num_shards: Sequence[int]) -> bool:
    """Takes an equation into the block if all choices carry through it, each over so many devices."""
    equation = graph.equations[position]
    found = [_carry(graph, position, *of_choice) for of_choice in zip(growth.dims, num_shards, strict=True)]
    if any(outputs is None for outputs in found):
        return False
    for choice, outputs in enumerate(found):
        assert outputs is not None
        for var, (dim, chunks) in zip(equation.outvars, outputs, strict=True):
            growth.dims[choice][var] = dim
            growth.num_chunks[choice] = math.gcd(growth.num_chunks[choice], chunks)
    reached = 0
    for atom in equation.invars:
        reached |= growth.reached_by.get(atom, 0) if is_var(atom) else 0
    growth.reached_by.update((var, reached) for var in equation.outvars)
    if reached & (reached - 1):
        growth.together.append(reached)
    growth.positions.append(position)
    return True


def _carry(graph: StepGraph, position: int, dims: ShardedDims, num_shards: int) -> list[tuple[int | None, int]] | None:
    """Returns for each output the sharded dim and its chunks (0: any number); None if the partition ends here."""
    outputs = []
    for output in range(len(graph.equations[position].outvars)):
        links = [link for _, link in graph.arrivals(position, output, dims, num_shards)]
        wanted = {None if link is None else link.out_dim for link in links}
        if len(wanted) > 1 or None in wanted:
            return None
        outputs.append((next(iter(wanted), None), math.gcd(*(link.num_chunks for link in links if link is not None))))
    return outputs


def shard_shared(graph: StepGraph, growth: Growth, choice: int, *, num_shards: int) -> None:
    """Shards values that a choice leaves whole where all that the block makes of them is sharded.

    A device takes its own part of keys that are repeated for all queries; their gradient is then a part as well.
    """
    dims = growth.dims[choice]
    inside = set(growth.positions)
    for position in reversed(growth.positions):
        for var in graph.equations[position].outvars:
            users = [user for user in graph.users.get(var, ()) if graph.phases[user] is EquationPhase.FORWARD]
            if dims[var] is not None or not users or not inside.issuperset(users):
                continue
            wanted = {_wanted(graph, user, var, dims, num_shards) for user in users}
            if len(wanted) == 1:
                dims[var] = wanted.pop()


def _wanted(graph: StepGraph, user: int, var: Var, dims: ShardedDims, num_shards: int) -> int | None:
    """Returns the dim of an input that follows from the sharded dim of all outputs; None if none does."""
    equation = graph.equations[user]
    found = {
        dict(reversed(graph.inputs_of(user, output, dims[out], num_shards))).get(var)
        for output, out in enumerate(equation.outvars)
    }
    return found.pop() if len(found) == 1 else None


def trim_block(graph: StepGraph, growth: Growth, *, keep: Collection[int]) -> None:
    """Removes equations whose results are not used in the block, and whose inputs are all used after it as well."""
    inside = set(growth.positions)

    def is_used_after(var: Var) -> bool:
        return any(
            user not in inside and graph.phases[user] is EquationPhase.FORWARD for user in graph.users.get(var, ())
        )

    for position in reversed(growth.positions):
        equation = graph.equations[position]
        if position in keep or position in graph.contractions:
            continue
        users = {user for var in equation.outvars for user in graph.users.get(var, ())}
        forward = [user for user in users if graph.phases[user] is EquationPhase.FORWARD]
        own = [var for var in variables(equation.invars) if var in growth.reached_by]
        if own and not inside.intersection(forward) and all(map(is_used_after, own)):
            inside.remove(position)
            for var in equation.outvars:
                del growth.reached_by[var]
                for dims in growth.dims:
                    del dims[var]
    growth.positions = [position for position in growth.positions if position in inside]
