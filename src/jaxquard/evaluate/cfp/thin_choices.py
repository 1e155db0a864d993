"""Leaves each block with two choices, so that little is to be priced: for a quick look, not for results."""

from dataclasses import replace

from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.shardings.baselines import baselines


def thin_choices(analysis: Analysis) -> Analysis:
    """The same analysis with the choices of data parallelism and of Megatron alone."""
    known = baselines(analysis)
    kept = [
        {*known["data parallel"].assignment[block.number], *known["megatron"].assignment[block.number]}
        for block in analysis.blocks
    ]
    blocks = [
        replace(block, choices=tuple(choice for choice in block.choices if choice.name in names))
        for block, names in zip(analysis.blocks, kept, strict=True)
    ]
    return replace(analysis, blocks=tuple(blocks))
