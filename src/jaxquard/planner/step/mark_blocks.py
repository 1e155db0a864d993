"""The user's marks among the blocks of a step: which blocks stand before each."""

from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.ir.jaxpr_tools import variables
from jaxquard.pipeline.marks import MarkRole
from jaxquard.planner.step.markers import read_mark


def find_mark_blocks(analysis: Analysis) -> dict[int, int]:
    """Returns for each mark, by number, the first block after it.

    Marks with no block before or after them, and marks that later blocks come before, have none.
    """
    equations = analysis.graph.equations
    found: dict[int, int] = {}
    for position, equation in enumerate(equations):
        mark = read_mark(equation)
        if mark is not None and mark[1] is MarkRole.PRIMAL:
            before = _blocks_before(analysis, position)
            is_first_blocks = before == set(range(len(before)))
            if is_first_blocks and len(before) < len(analysis.blocks):
                found[mark[0]] = max(found.get(mark[0], 0), len(before))
    return {mark: block for mark, block in found.items() if block > 0}


def _blocks_before(analysis: Analysis, position: int) -> set[int]:
    """Returns the blocks whose first contractions an equation needs."""
    graph = analysis.graph
    of_seed = {seed.position: block.number for block in analysis.blocks for seed in block.seeds}
    seen: set[int] = set()
    waiting = [position]
    while waiting:
        for var in variables(graph.equations[waiting.pop()].invars):
            source = graph.definitions.get(var)
            if source is not None and source not in seen:
                seen.add(source)
                waiting.append(source)
    return {of_seed[found] for found in seen if found in of_seed}
