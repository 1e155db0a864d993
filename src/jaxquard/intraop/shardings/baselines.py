"""Baselines: known recipes as choices for the same blocks, so that they work on any step (CFP, section 5).

    data parallel                  rows everywhere
    zero 1, zero 3                 the same, but the optimizer's state, or all state, is sharded between steps; weights
                                   are gathered once a step, and again for what a checkpoint recomputes
    megatron                       pairs of columns and contracted; embeddings sharded along the vocabulary
    megatron, sequence parallel    the same, but sums end sharded by rows
    context parallel               the sequence sharded in all blocks, where that can be worth it (`shard_sequence`)

The baseline `volume`, of the fewest bytes communicated, takes a search (`plan.volume`).
On a mesh of several axes Megatron's choices, and the sequence, are for the last one, and the others shard rows.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from jaxquard.intraop.blocks.block import Block
from jaxquard.intraop.blocks.follow_blocks import arriving_dims
from jaxquard.intraop.blocks.shard_sequence import SEQUENCE
from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.segments.strategies import block_choices, has_choices
from jaxquard.intraop.shardings.layouts import Assignment, Storage
from jaxquard.ir.jaxpr_tools import Var

# Data parallelism shards rows, or else the first batch dim.
_ROWS = ("rows", "batch 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidatePlan:
    """A plan under consideration, of the search or a baseline: a named assignment.

    Attributes:
        assignment: the choice of every block.
        storage: the layout of state between steps.
    """

    name: str
    assignment: Assignment
    storage: Storage = Storage.AS_USED

    @property
    def key(self) -> Hashable:
        """The identity of the plan, whatever its name."""
        return tuple((block, tuple(names)) for block, names in sorted(self.assignment.items())), self.storage


def baselines(analysis: Analysis, *, tensor: Mapping[int, str] | None = None) -> dict[str, CandidatePlan]:
    """Returns the baselines that follow from the blocks alone, by name.

    Args:
        tensor: `tensor_choices` of the analysis, where they are known.
    """
    rows = {block.number: _data_parallel(block, analysis.axes) for block in analysis.blocks}
    tensor = tensor_choices(analysis) if tensor is None else tensor
    found = [
        CandidatePlan(name="data parallel", assignment=rows),
        CandidatePlan(name="zero 1", assignment=rows, storage=Storage.ZERO_1),
        CandidatePlan(name="zero 3", assignment=rows, storage=Storage.ZERO_3),
        CandidatePlan(name="megatron", assignment=_on_last_axis(analysis, tensor)),
        CandidatePlan(
            name="megatron, sequence parallel",
            assignment=_on_last_axis(analysis, tensor, is_scattered=True),
        ),
    ]
    sequence = (*["rows"] * (len(analysis.axes) - 1), SEQUENCE)
    if all(has_choices(block, sequence, analysis.axes) for block in analysis.blocks):
        found.append(
            CandidatePlan(name="context parallel", assignment={block.number: sequence for block in analysis.blocks})
        )
    return {baseline.name: baseline for baseline in found}


def _data_parallel(block: Block, axes: Mapping[str, int]) -> tuple[str, ...]:
    return _nearest(block, axes, [_ROWS] * len(axes))


def _on_last_axis(
    analysis: Analysis, names: Mapping[int, str], *, is_scattered: bool = False
) -> dict[int, tuple[str, ...]]:
    """Takes the names for the last axis, and rows for the others.

    Args:
        is_scattered: sums end sharded by rows where they can.
    """
    found = {}
    for block in analysis.blocks:
        name = names[block.number]
        last = ("scattered", name) if is_scattered and name == "contracted" else (name,)
        found[block.number] = _nearest(block, analysis.axes, [*[_ROWS] * (len(analysis.axes) - 1), last])
    return found


def _nearest(block: Block, axes: Mapping[str, int], wanted: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Returns the choice on all axes that is nearest to the wanted names, of which earlier ones are better."""
    extra = {choice.name for choice in block.more_choices}
    fitting = block_choices(block, axes, batch_axis=None)
    if "scattered" in extra and any("scattered" in names for names in wanted):
        # It divides as rows do.
        fitting += [(*names[:-1], "scattered") for names in fitting if names[-1] == "rows"]

    def misses(found: tuple[str, ...]) -> tuple[int, list[int]]:
        pairs = zip(found, wanted, strict=True)
        places = [names.index(name) if name in names else 1 + len(names) for name, names in pairs]
        return sum(places), places[::-1]

    return min(fitting, key=misses, default=(block.choices[0].name,) * len(axes))


def tensor_choices(analysis: Analysis) -> dict[int, str]:
    """Returns Megatron's tensor-parallel choice of every block; the same on all meshes that have the same blocks.

    A look-up shards its table along the vocabulary. A block whose input is sharded along its contracted dim takes that;
    any other shards its columns. Experts are sharded in the same way inside, as Megatron's tensor parallelism does.
    """
    graph, num_shards = analysis.graph, max(analysis.axes.values())
    known: dict[Var, int | None] = {}
    chosen: dict[int, str] = {}
    for block in analysis.blocks:
        contracted = next((choice for choice in block.choices if choice.name == "contracted"), None)
        for seed, one in zip(block.seeds, contracted.partitions if contracted else (), strict=False):
            arriving = arriving_dims(graph, seed, known, num_shards=num_shards)[seed.data]
            if seed.is_lookup or (arriving is not None and arriving == one.in_dims[seed.data]):
                break
        else:
            contracted = None
        order = ("columns", "contracted") if contracted is None else ("contracted",)
        choice = next((block.choice(name) for name in order if name in block.names), block.choices[0])
        chosen[block.number] = choice.name
        following = (var for position in block.followers for var in graph.equations[position].outvars)
        known |= {**dict.fromkeys(following), **choice.dims, **choice.follower_dims}
    return chosen
