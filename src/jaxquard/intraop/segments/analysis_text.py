"""The text of an analysis, which `jaxquard shard show` prints.

    17 equations: 2 blocks in 1 segment of 1 kind, over x=8

    segment 0, kind 0
      block 0: 2 contractions, 14 equations forward, 51 with what belongs to it
        params.up, mlp, train.py:12  dot_general float32[8,32,64] float32[64,256] -> float32[8,32,256]
        rows 8, columns 256, contracted 64

A block is shown by the contractions that it begins with and by its choices, each with the size of the dim that it
shards, and where it differs, the number of parts that the block can be split into. A contraction has the names that it
has in the table of a plan. Where all blocks begin in one function, the line that calls it stands before its own.
"""

from collections.abc import Mapping, Sequence
from itertools import islice

from jaxquard.intraop.blocks.block import Block, Choice
from jaxquard.intraop.blocks.contraction import Contraction
from jaxquard.intraop.blocks.graph import StepGraph
from jaxquard.intraop.blocks.parameter_paths import parameters_of, state_paths
from jaxquard.intraop.blocks.unplanned_matmuls import step_notes
from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.segments.block_names import where_text
from jaxquard.ir.jaxpr_tools import Var
from jaxquard.ir.source import name_scope, source_line, source_lines


def analysis_text(analysis: Analysis) -> str:
    """Returns the segments with their blocks as text, in the order of the step."""
    owned = [analysis.owners.count(block.number) for block in analysis.blocks]
    num_kinds = len({segment.kind for segment in analysis.segments})
    axes = " x ".join(f"{axis}={size}" for axis, size in analysis.axes.items())
    paths = state_paths(analysis.graph)
    lines = [
        f"{_count(len(analysis.owners), 'equation')}: {_count(len(analysis.blocks), 'block')} in "
        f"{_count(len(analysis.segments), 'segment')} of {_count(num_kinds, 'kind')}, over {axes}"
    ]
    shown: dict[int, int] = {}
    for segment in analysis.segments:
        first = shown.setdefault(segment.kind, segment.number)
        as_first = "" if first == segment.number else f", as segment {first}"
        lines += ["", f"segment {segment.number}, kind {segment.kind}{as_first}"]
        blocks = [analysis.blocks[number] for number in segment.blocks]
        begins = [source_line(block.seeds[0].equation) for block in blocks]
        for block, begin in zip(blocks, begins, strict=True):
            depth = 2 if begins.count(begin) > 1 else 1
            where = [_where(analysis.graph, seed, paths, depth) for seed in block.seeds]
            lines += [f"  {line}" for line in _block_lines(block, owned[block.number], where)]
    notes = step_notes(analysis.graph)
    return "\n".join([*lines, *([""] if notes else []), *(f"note: {note}" for note in notes)])


def _block_lines(block: Block, num_owned: int, where: Sequence[str]) -> list[str]:
    lines = [
        f"block {block.number}: {_count(len(block.contractions), 'contraction')}, "
        f"{_count(len(block.equations), 'equation')} forward, {num_owned} with what belongs to it"
    ]
    width = max(map(len, where))
    for seed, place in zip(block.seeds, where, strict=True):
        lines.append(f"  {place.ljust(width)}  {_seed_text(seed)}")
    lines.append(f"  {', '.join(map(_choice_text, block.choices))}")
    return lines


def _where(graph: StepGraph, seed: Contraction, paths: Mapping[Var, str], depth: int) -> str:
    """Returns the parameters of a contraction, its scope, and its innermost lines, the outer ones first."""
    equation = seed.equation
    line = " > ".join([*islice(source_lines(equation), depth)][::-1]) or source_line(equation)
    return where_text(parameters_of(graph, [equation], paths), filter(None, [name_scope(equation)]), [line])


def _seed_text(seed: Contraction) -> str:
    inputs = " ".join(atom.aval.str_short() for atom in seed.equation.invars)
    return f"{seed.equation.primitive.name} {inputs} -> {seed.equation.outvars[0].aval.str_short()}"


def _choice_text(choice: Choice) -> str:
    sizes = "+".join(str(size) for size in dict.fromkeys(one.size for one in choice.partitions))
    parts = "" if sizes == str(choice.num_chunks) else f" ({choice.num_chunks} parts)"
    return f"{choice.name} {sizes}{parts}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
