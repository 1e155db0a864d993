"""What people use without a search, as choices for the same blocks, so that it works on any step (CFP, section 5).

    data parallel                  rows everywhere
    zero 1, zero 3                 the same, but the optimizer's state, or all state, is kept in parts
    megatron                       pairs of columns and contracted; embeddings cut along the vocabulary
    megatron, sequence parallel    the same, but sums end cut by rows
    volume                         the fewest bytes moved, as Alpa chooses

On a mesh of several axes Megatron's choices are for the last one, and the others cut rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxquard.intraop.analyse import Analysis
from jaxquard.intraop.block import Block
from jaxquard.intraop.layouts import Assignment, Storage
from jaxquard.intraop.moves import Move, all_choices, find_communication
from jaxquard.intraop.strategies import block_choices
from jaxquard.intraop.volume import solve_volume


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
            assignment=_on_last_axis(analysis, _scattered(analysis, tensor)),
        ),
        Baseline(name="volume", assignment=solve_volume(analysis)),
    ]
    return {baseline.name: baseline for baseline in found}


def _data_parallel(block: Block, axes: Mapping[str, int]) -> tuple[str, ...]:
    return _nearest(block, axes, [("rows", "batch 0")] * len(axes))


def _on_last_axis(analysis: Analysis, names: Mapping[int, str]) -> dict[int, tuple[str, ...]]:
    others = [("rows", "batch 0")] * (len(analysis.axes) - 1)
    return {
        block.number: _nearest(block, analysis.axes, [*others, (names[block.number],)]) for block in analysis.blocks
    }


def _nearest(block: Block, axes: Mapping[str, int], wanted: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """The choice on all axes that has most of the wanted names, the last axis first; earlier names are better.

    Choices that only baselines have are taken where they are wanted; they divide as rows do.
    """
    extra = {choice.name for choice in block.more_choices}
    stand_ins = [[("rows" if name in extra else name) for name in names] for names in wanted]

    def misses(found: tuple[str, ...]) -> list[int]:
        pairs = zip(found, stand_ins, strict=True)
        return [names.index(name) if name in names else len(names) for name, names in pairs][::-1]

    fitting = block_choices(block, axes, batch_axis=None)
    best = min(fitting, key=misses, default=(block.choices[0].name,) * len(axes))
    return tuple(
        names[0] if names[0] in extra and name == "rows" else name for name, names in zip(best, wanted, strict=True)
    )


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


def _scattered(analysis: Analysis, names: Mapping[int, str]) -> dict[int, str]:
    """Sums of contracted parts end cut by rows, where a block can do so."""
    found = {}
    for number, name in names.items():
        more = [choice.name for choice in analysis.blocks[number].more_choices]
        found[number] = "scattered" if name == "contracted" and "scattered" in more else name
    return found
