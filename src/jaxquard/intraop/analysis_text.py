"""An analysis as text: what `jaxquard shard show` prints.

    17 equations: 2 blocks in 1 segment of 1 kind, over x=8

    segment 0, kind 0
      block 0: 2 contractions, 14 equations
        train.py:12     dot_general float32[8,32,64] float32[64,256] -> float32[8,32,256]
        rows 8, columns 256, contracted 64

A block is shown by the contractions that it begins with and by its choices, each with the size of the dim that it
cuts, and where it differs, the number of parts that the block can be cut into.
"""

from jaxquard.intraop.analyse import Analysis
from jaxquard.intraop.block import Block, Choice
from jaxquard.intraop.contraction import Contraction
from jaxquard.intraop.source_lines import source_line


def analysis_text(analysis: Analysis) -> str:
    """Segments with their blocks, in the order of the step."""
    owned = [analysis.owners.count(block.number) for block in analysis.blocks]
    num_kinds = len({segment.kind for segment in analysis.segments})
    axes = " x ".join(f"{axis}={size}" for axis, size in analysis.axes.items())
    lines = [
        f"{_count(len(analysis.owners), 'equation')}: {_count(len(analysis.blocks), 'block')} in "
        f"{_count(len(analysis.segments), 'segment')} of {_count(num_kinds, 'kind')}, over {axes}"
    ]
    shown: dict[int, int] = {}
    for segment in analysis.segments:
        first = shown.setdefault(segment.kind, segment.number)
        as_first = "" if first == segment.number else f", as segment {first}"
        lines += ["", f"segment {segment.number}, kind {segment.kind}{as_first}"]
        for number in segment.blocks:
            lines += [f"  {line}" for line in _block_lines(analysis.blocks[number], owned[number])]
    return "\n".join(lines)


def _block_lines(block: Block, num_owned: int) -> list[str]:
    lines = [
        f"block {block.number}: {_count(len(block.contractions), 'contraction')}, "
        f"{_count(len(block.equations), 'equation')} forward, {num_owned} with what belongs to it"
    ]
    places = [source_line(seed.equation) for seed in block.seeds]
    width = max(map(len, places))
    for seed, place in zip(block.seeds, places, strict=True):
        lines.append(f"  {place.ljust(width)}  {_seed_text(seed)}")
    lines.append(f"  {', '.join(map(_choice_text, block.choices))}")
    return lines


def _seed_text(seed: Contraction) -> str:
    inputs = " ".join(atom.aval.str_short() for atom in seed.equation.invars)
    return f"{seed.equation.primitive.name} {inputs} -> {seed.equation.outvars[0].aval.str_short()}"


def _choice_text(choice: Choice) -> str:
    sizes = "+".join(str(size) for size in dict.fromkeys(cut.size for cut in choice.cuts))
    parts = "" if sizes == str(choice.num_chunks) else f" ({choice.num_chunks} parts)"
    return f"{choice.name} {sizes}{parts}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
