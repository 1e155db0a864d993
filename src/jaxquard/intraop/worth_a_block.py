"""Which contractions begin blocks: those of data with state that do not count next to nothing (a router).

The measure is the largest that recurs with other weights: a product of the layers. The head of a language model may be
a hundred times as large as the smallest of these, and is there once; two models in one step, as for distillation, have
two of them.
"""

from collections import Counter

from jaxquard.intraop.contraction import Contraction
from jaxquard.intraop.graph import StepGraph
from jaxquard.ir.jaxpr_tools import Var, is_var, variables

# A contraction with fewer multiplications than this part of the measure begins no block.
_LEAST_SHARE = 32
# Products of layers have at least this part of the largest of all. Less is no measure, however often it recurs.
_LEAST_MEASURE = 512
# They differ by less than this, from one to the next larger: what is so much larger are heads.
_FAR_LARGER = 8


def worth_a_block(graph: StepGraph) -> dict[int, None]:
    """The positions of contractions that may begin blocks, in order."""
    contractions = graph.contractions
    has_state = any(found.has_state and not found.is_lookup for found in contractions.values())
    candidates = {position: found for position, found in contractions.items() if found.has_state or not has_state}
    measures = {
        False: _measure(graph, [found for found in candidates.values() if not found.is_lookup]),
        True: max((found.weight for found in candidates.values() if found.is_lookup), default=0),
    }
    return dict.fromkeys(
        position for position, found in candidates.items() if found.weight * _LEAST_SHARE >= measures[found.is_lookup]
    )


def _measure(graph: StepGraph, contractions: list[Contraction]) -> int:
    """The multiplications of the largest product of a layer, or of the largest of all if that says nothing."""
    counts = Counter(weight for weight, _ in {(found.weight, _state(graph, found)) for found in contractions})
    largest = max(counts, default=0)
    recurring = sorted((weight for weight, count in counts.items() if count > 1), reverse=True)
    in_layers = [weight for weight in recurring if weight * _LEAST_MEASURE >= largest]
    while len(in_layers) > 1 and in_layers[0] > _FAR_LARGER * in_layers[1]:
        del in_layers[0]
    return in_layers[0] if in_layers else largest


def _state(graph: StepGraph, contraction: Contraction) -> Var | int:
    """The state that a contraction multiplies by, before it was cast or turned."""
    atom = contraction.equation.invars[1 - contraction.data]
    if not is_var(atom):
        return contraction.position
    while (position := graph.definitions.get(atom)) is not None:
        sources = variables(graph.equations[position].invars)
        if len(sources) != 1:
            break
        atom = sources[0]
    return graph.first(atom)
