"""What blocks are called: the weight that the first product of each multiplies with."""

import re

from jaxquard.evaluate.cfp.cell import BlockInfo
from jaxquard.intraop.blocks.contraction import Contraction
from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.ir.jaxpr_tools import Var, is_var
from jaxquard.ir.source import source_line

_KEY = re.compile(r"\['([^']+)'\]|\[(\d+)\]")
# Words that say nothing beside others.
_COMMON = {"params", "layers", "kernel", "weight"}


def name_blocks(analysis: Analysis) -> tuple[BlockInfo, ...]:
    """All blocks of a step, in order."""
    names = dict(zip(analysis.graph.step.jaxpr.invars, analysis.graph.step.input_names, strict=True))
    of_block, kinds = analysis.segment_of_block(), [segment.kind for segment in analysis.segments]
    return tuple(
        BlockInfo(
            segment=of_block[block.number],
            kind=kinds[of_block[block.number]],
            weight=" ".join(dict.fromkeys(_weight(analysis, seed, names) for seed in block.seeds)),
            line=source_line(block.seeds[0].equation),
            names=block.names,
        )
        for block in analysis.blocks
    )


def _weight(analysis: Analysis, seed: Contraction, names: dict[Var, str]) -> str:
    """The last words of the state's name that goes into a product; else the product's own name."""
    for var in seed.equation.invars[::-1]:
        while is_var(var) and var not in names and var in analysis.graph.definitions:
            inputs = analysis.graph.equations[analysis.graph.definitions[var]].invars
            if len(inputs) != 1:
                break
            (var,) = inputs
        if is_var(var) and var in analysis.graph.state:
            words = [one or other for one, other in _KEY.findall(names[var])]
            told = [word for word in words if word not in _COMMON and not word.isdecimal()]
            return " ".join(told[-2:]) or names[var]
    return seed.equation.primitive.name
