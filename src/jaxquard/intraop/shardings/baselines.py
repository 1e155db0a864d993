"""What people use without a search, as choices for the same blocks, so that it works on any step (CFP, section 5).

    data parallel                  rows everywhere
    zero 1, zero 3                 the same, but the optimizer's state, or all state, is kept in parts; weights are
                                   gathered once a step, and again for what a checkpoint computes again
    megatron                       pairs of columns and contracted; embeddings cut along the vocabulary
    megatron, sequence parallel    the same, but sums end cut by rows
    volume                         the fewest bytes moved, as Alpa chooses

On a mesh of several axes Megatron's choices are for the last one, and the others cut rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxquard.intraop.blocks.block import Block
from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.segments.strategies import block_choices
from jaxquard.intraop.shardings.communication import Move, all_choices, find_communication
from jaxquard.intraop.shardings.layouts import Assignment, Storage
from jaxquard.intraop.shardings.volume import solve_volume

# What data parallelism cuts: rows, or else the first batch dim.
_ROWS = ("rows", "batch 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A named assignment.

    Attributes:
        storage: how state is kept between steps.
    """

    name: str
    assignment: Assignment
    storage: Storage = Storage.AS_USED


def baselines(analysis: Analysis) -> dict[str, Baseline]:
    """All baselines, by name."""
    rows = {block.number: _data_parallel(block, analysis.axes) for block in analysis.blocks}
    tensor = _megatron(analysis)
    found = [
        Baseline(name="data parallel", assignment=rows),
        Baseline(name="zero 1", assignment=rows, storage=Storage.ZERO_1),
        Baseline(name="zero 3", assignment=rows, storage=Storage.ZERO_3),
        Baseline(name="megatron", assignment=_on_last_axis(analysis, tensor)),
        Baseline(
            name="megatron, sequence parallel",
            assignment=_on_last_axis(analysis, tensor, is_scattered=True),
        ),
        Baseline(name="volume", assignment=solve_volume(analysis)),
    ]
    return {baseline.name: baseline for baseline in found}


def _data_parallel(block: Block, axes: Mapping[str, int]) -> tuple[str, ...]:
    return _nearest(block, axes, [_ROWS] * len(axes))


def _on_last_axis(
    analysis: Analysis, names: Mapping[int, str], *, is_scattered: bool = False
) -> dict[int, tuple[str, ...]]:
    """Takes the names for the last axis, and rows for the others; if scattered, sums end cut by rows where they can."""
    found = {}
    for block in analysis.blocks:
        name = names[block.number]
        last = ("scattered", name) if is_scattered and name == "contracted" else (name,)
        found[block.number] = _nearest(block, analysis.axes, [*[_ROWS] * (len(analysis.axes) - 1), last])
    return found


def _nearest(block: Block, axes: Mapping[str, int], wanted: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The choice on all axes that is nearest to the wanted names, of which earlier ones are better."""
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


def _megatron(analysis: Analysis) -> dict[int, str]:
    """The tensor-parallel choice of every block.

    A look-up cuts its table along the vocabulary. A block whose input is cut along its contracted dim takes that; any
    other cuts its columns. Experts are cut in the same way inside, as Megatron's tensor parallelism does.
    """
    moves: dict[int, list[Move]] = {}
    for move in find_communication(analysis).moves:
        moves.setdefault(move.taker, []).append(move)
    chosen: dict[int, str] = {}
    for block in analysis.blocks:
        is_lookup = block.seeds[0].is_lookup
        contracted = is_lookup or any(_is_cut_so(analysis, move, chosen) for move in moves.get(block.number, ()))
        order = ("contracted", "columns") if contracted else ("columns", "contracted")
        chosen[block.number] = next((name for name in order if name in block.names), block.names[0])
    return chosen


def _is_cut_so(analysis: Analysis, move: Move, chosen: Mapping[int, str]) -> bool:
    """Whether a value is cut along the dim by which its taker cuts it to cut what it contracts."""
    names = [choice.name for choice in all_choices(analysis.blocks[move.taker])]
    if move.holder not in chosen or "contracted" not in names:
        return False
    of_holder = [choice.name for choice in all_choices(analysis.blocks[move.holder])]
    held = move.held[of_holder.index(chosen[move.holder])]
    is_data = move.value in analysis.graph.data_vars
    return is_data and held is not None and held == move.wanted[names.index("contracted")]
