"""What a step does for a block after the forward: it decides what the block costs, and not how it can be cut.

Of which operands of its products gradients are made (of convolutions, how many), whether it or the block before it is
computed again (the last product under a checkpoint need not be, wherever that is), and how many arrays of the operands'
shapes the update puts into the state: a weight and its moments. What else belongs to a block, such as the norm at the
end of a model, is small, and would make another kind of the last layer.
"""

from collections import Counter
from collections.abc import Hashable, Sequence

from jaxquard.intraop.blocks.block import Block
from jaxquard.intraop.blocks.graph import StepGraph
from jaxquard.intraop.blocks.match_backward import Matches
from jaxquard.intraop.step.phases import Phase
from jaxquard.ir.jaxpr_tools import is_var


def later_work(graph: StepGraph, blocks: Sequence[Block], matches: Matches, owners: Sequence[int]) -> list[Hashable]:
    """Of every block; equal where the same is done."""
    gradients = Counter(_gradients(graph, matches))
    convolutions = Counter(_owners_of_convolutions(graph, owners))
    again = {owners[position] for position in _computed_again(graph)}
    replaced = _replaced(graph, owners)
    found: list[Hashable] = []
    for block in blocks:
        shapes = {
            atom.aval.shape for place in block.contractions for atom in graph.equations[place].invars if is_var(atom)
        }
        updates = tuple(sorted((shape, replaced[block.number, shape]) for shape in shapes))
        of_each = tuple(tuple(gradients[position, place] for place in (0, 1)) for position in block.contractions)
        is_again = not again.isdisjoint((block.number - 1, block.number))
        found.append((of_each, convolutions[block.number], is_again, updates))
    return found


def _gradients(graph: StepGraph, matches: Matches) -> list[tuple[int, int | None]]:
    """The contractions and the places of their operands that backward contractions make gradients of."""
    made = (matches.cotangents[graph.equations[position].outvars[0]] for position in matches.partners)
    return [(cotangent.position, cotangent.place) for cotangent in made]


def _owners_of_convolutions(graph: StepGraph, owners: Sequence[int]) -> list[int]:
    """The blocks of those in the backward."""
    steps = zip(graph.equations, graph.phases, owners, strict=True)
    return [
        owner
        for equation, phase, owner in steps
        if phase is Phase.BACKWARD and equation.primitive.name == "conv_general_dilated"
    ]


def _computed_again(graph: StepGraph) -> list[int]:
    """The contractions whose values others after the forward have again."""
    firsts = ((graph.definitions[var], graph.definitions.get(first)) for var, first in graph.first_values.items())
    return [
        first
        for position, first in firsts
        if first in graph.contractions
        and graph.phases[position] is not Phase.FORWARD
        and graph.equations[position].primitive is graph.equations[first].primitive
    ]


def _replaced(graph: StepGraph, owners: Sequence[int]) -> Counter[tuple[int, tuple[int, ...]]]:
    """By block and shape, how many arrays of the state the update makes."""
    step = graph.step
    results = {
        step.jaxpr.outvars[result]
        for result in step.result_of_input
        if result is not None and is_var(step.jaxpr.outvars[result])
    }
    positions = [(graph.definitions[var], var) for var in results if var in graph.definitions]
    return Counter(
        (owners[position], var.aval.shape) for position, var in positions if graph.phases[position] is Phase.UPDATE
    )
