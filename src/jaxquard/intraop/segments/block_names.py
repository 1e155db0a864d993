"""The names by which a user speaks of a block: the paths of its parameters, its scopes, and its lines in the code."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from jaxquard.intraop.blocks.block import Block
from jaxquard.intraop.blocks.graph import StepGraph
from jaxquard.intraop.blocks.parameter_paths import parameters_of, state_paths
from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.segments.fold_repeats import star_numbers
from jaxquard.ir.jaxpr_tools import Equation, Var
from jaxquard.ir.source import UNKNOWN_LINE, name_scope, shorten_paths, source_frames


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockNames:
    """The names of a block.

    Attributes:
        paths: of the parameters that its contractions use, such as "params.layers.3.mlp.up".
        scopes: that its contractions stand in (`jax.named_scope`), such as "encoder/attention".
        lines: of the user's code, where its contractions stand, then those that called them.
        more_paths: of the parameters of contractions that are too small to begin a block, and run with this one.
    """

    paths: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    more_paths: tuple[str, ...] = ()

    @property
    def all_paths(self) -> tuple[str, ...]:
        """The paths of the parameters of all contractions that run with it."""
        return tuple(dict.fromkeys([*self.paths, *self.more_paths]))

    @property
    def line(self) -> str:
        """The line at which it begins."""
        return self.lines[0] if self.lines else UNKNOWN_LINE


def names_of_blocks(analysis: Analysis) -> dict[int, BlockNames]:
    """Finds the names of every block of a step, by its number."""
    graph = analysis.graph
    paths = state_paths(graph)
    positions = {position for block in analysis.blocks for position in block.contractions}
    files = shorten_paths(path for position in positions for path, _ in source_frames(graph.equations[position]))
    small: dict[int, list[Equation]] = {}
    for position in graph.contractions:
        if position not in positions:
            small.setdefault(analysis.owners[position], []).append(graph.equations[position])
    return {
        block.number: _names_of(graph, block, small.get(block.number, ()), paths, files) for block in analysis.blocks
    }


def _names_of(
    graph: StepGraph, block: Block, small: Sequence[Equation], paths: Mapping[Var, str], files: Mapping[str, str]
) -> BlockNames:
    equations = [graph.equations[position] for position in block.contractions]
    lines = [[f"{files[path]}:{line}" for path, line in source_frames(equation)] for equation in equations]
    first = [found[0] for found in lines if found]
    callers = [line for found in lines for line in found[1:]]
    return BlockNames(
        paths=parameters_of(graph, equations, paths),
        scopes=tuple(dict.fromkeys(filter(None, map(name_scope, equations)))),
        lines=tuple(dict.fromkeys([*first, *callers])),
        more_paths=parameters_of(graph, small, paths),
    )


def where_text(
    paths: Iterable[str], scopes: Iterable[str], lines: Iterable[str], *, is_folded: bool = False, most: int = 64
) -> str:
    """Returns where blocks are: the paths of their parameters and their scopes, as far as these fit, then their lines.

    Args:
        is_folded: whether the blocks stand for others of their kind, in layers with other numbers.
        most: characters of paths, and of scopes.
    """
    paths, scopes = dict.fromkeys(paths), dict.fromkeys(scopes)
    if is_folded:
        paths = dict.fromkeys(map(star_numbers, paths))
        scopes = dict.fromkeys(star_numbers(scope, "/") for scope in scopes)
    words = {word for path in paths for word in path.split(".")}
    # Flax opens a scope for each module, which says no more than the path does.
    named = [scope for scope in scopes if scope.split("/")[-1] not in words]
    return ", ".join(
        filter(None, (_join(list(paths), ".", most), _join(named, "/", most), " ".join(dict.fromkeys(lines))))
    )


def _join(names: Sequence[str], separator: str, most: int) -> str:
    """Returns names with what they share once: `layers.0.{attention.{q, k}, mlp.up}.kernel`."""
    text = _join_words([tuple(name.split(separator)) for name in names], separator)
    return text if len(text) <= most else f"{text[: most - 3].rstrip(', ')}..."


def _join_words(names: Sequence[tuple[str, ...]], separator: str) -> str:
    if len(names) <= 1:
        return "".join(map(separator.join, names))
    shortest = min(map(len, names))
    begin = next((at for at in range(shortest) if len({name[at] for name in names}) > 1), shortest - 1)
    rest = [name[begin:] for name in names]
    room = min(map(len, rest)) - 1
    end = next((at for at in range(room) if len({name[-1 - at] for name in rest}) > 1), room)
    inner = [name[: len(name) - end] for name in rest]
    groups = groupby(inner, key=lambda name: name[0])
    parts = [_join_words(list(of_first), separator) for _, of_first in groups] if begin else map(separator.join, inner)
    shared = names[0][:begin], names[0][len(names[0]) - end :]
    joined = ", ".join(parts)
    return separator.join([*shared[0], f"{{{joined}}}" if any(shared) else joined, *shared[1]])
