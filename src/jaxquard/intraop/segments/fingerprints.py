"""Fingerprints of blocks: equal for blocks whose prices are the same (CFP, section 4.1).

A fingerprint holds the shapes of a block's contractions and their dependences on the contractions of the blocks before:
how far back, and along which dims. A price is of forward, backward and update, so it also holds the backward signature:

- the operands of its products that have gradients (of convolutions, how many): a frozen layer is another one;
- whether the block, or the one before it, is recomputed (the last product under a checkpoint need not be);
- the number of arrays of the operands' shapes that the update puts into the state: a weight and its moments.

What else belongs to a block, such as the norm at the end of a model, is small, and would make another kind of the last
layer. Blocks with equal fingerprints have the same partitions and communicate alike, whatever stands between their
contractions.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

from jaxquard.intraop.blocks.block import Block, Choice
from jaxquard.intraop.blocks.graph import StepGraph
from jaxquard.intraop.blocks.match_backward import Matches
from jaxquard.intraop.step.phases import EquationPhase
from jaxquard.ir.jaxpr_tools import Equation, Var, is_var
from jaxquard.ir.operations import MATMULS

# Blocks so far back count as equally far: an encoder's memory, for every layer of the decoder but the first.
_FAR = 8
# Products that are no contraction that begins a block, and may take as long: grouped convolutions, products by experts.
_HEAVY = MATMULS - {"dot_general"}


def block_words(graph: StepGraph, blocks: Sequence[Block], matches: Matches, owners: Sequence[int]) -> list[int]:
    """Returns a number for each block, the same for blocks with equal fingerprints."""
    numbers: dict[Hashable, int] = {}
    alike = zip(
        fingerprints(graph, blocks),
        _other_products(graph, blocks, owners),
        backward_signature(graph, blocks, matches, owners),
        strict=True,
    )
    return [numbers.setdefault(fingerprint, len(numbers)) for fingerprint in alike]


def fingerprints(graph: StepGraph, blocks: Sequence[Block]) -> list[Hashable]:
    """Returns the forward fingerprint of every block."""
    made_by = producers(graph, blocks)
    by_number = {block.number: block for block in blocks}
    return [_fingerprint(graph, block, made_by, by_number) for block in blocks]


def producers(graph: StepGraph, blocks: Sequence[Block]) -> dict[Var, int]:
    """Maps each value of a block, or of what follows it, to the block's number."""
    return {
        var: block.number
        for block in blocks
        for position in (*block.equations, *block.followers)
        for var in graph.equations[position].outvars
    }


def _fingerprint(graph: StepGraph, block: Block, made_by: Mapping[Var, int], blocks: Mapping[int, Block]) -> Hashable:
    places = {position: place for place, position in enumerate(block.contractions)}
    contractions = tuple(_shape_of(graph.equations[position]) for position in block.contractions)
    partitions = tuple(
        (choice.name, choice.num_chunks, tuple((one.out_dim, one.in_dims) for one in choice.partitions))
        for choice in block.choices
    )
    sources = []
    for position, place in block.choices[0].needs:
        atom = graph.equations[position].invars[place]
        origin = _origin(graph, atom, made_by) if atom.aval.shape else None
        if origin is not None:
            wanted = tuple(choice.needs[position, place] for choice in block.choices)
            producer = blocks[made_by[origin]]
            given = tuple(_given(choice, origin) for choice in producer.choices)
            distance = _distance(block, producer.number)
            sources.append((places.get(position, -1), place, wanted, distance, given))
    return contractions, partitions, tuple(sources), _followers(graph, block, made_by)


def _followers(graph: StepGraph, block: Block, made_by: Mapping[Var, int]) -> Hashable:
    """Returns the products that follow a block: their shapes, their dims under each choice, and what they depend on."""
    found = []
    for position in block.followers:
        equation = graph.equations[position]
        if position in graph.contractions:
            dims = tuple(_given(choice, equation.outvars[0]) for choice in block.choices)
            origins = (_origin(graph, atom, made_by) for atom in equation.invars)
            distances = tuple(None if origin is None else _distance(block, made_by[origin]) for origin in origins)
            found.append((_shape_of(equation), dims, distances))
    return tuple(found)


def _distance(block: Block, producer: int) -> int:
    return min(block.number - producer, _FAR)


def _given(choice: Choice, var: Var) -> Hashable:
    """Returns the sharded dim of a value of the block, or of what follows it, under a choice."""
    return choice.dims[var] if var in choice.dims else choice.follower_dims.get(var, "open")


def _shape_of(equation: Equation) -> Hashable:
    """Returns the shapes and parameters of a product: a stride distinguishes convolutions of the same inputs."""
    shapes = tuple((atom.aval.shape, str(atom.aval.dtype)) for atom in (*equation.invars, *equation.outvars))
    params = tuple((name, str(value)) for name, value in sorted(equation.params.items()))
    return equation.primitive.name, shapes, params


def _origin(graph: StepGraph, atom: Var, made_by: Mapping[Var, int]) -> Var | None:
    """Returns the nearest value of another block that an input comes from, through what stands in no block."""
    return max(origins_of(graph, atom, made_by), key=made_by.__getitem__, default=None)


def origins_of(graph: StepGraph, atom: Var, made_by: Mapping[Var, int]) -> list[Var]:
    """Returns all values of other blocks that an input comes from, through what stands in no block."""
    return [var for var in graph.sources([atom], made_by.keys()) if var in made_by]


def _other_products(graph: StepGraph, blocks: Sequence[Block], owners: Sequence[int]) -> list[Hashable]:
    """Returns for each block the products of its forward that are no contractions."""
    found: dict[int, list[Hashable]] = {block.number: [] for block in blocks}
    for position, equation in enumerate(graph.equations):
        is_forward = graph.phases[position] is EquationPhase.FORWARD
        if is_forward and equation.primitive.name in _HEAVY and position not in graph.contractions:
            found[owners[position]].append(_shape_of(equation))
    return [tuple(found[block.number]) for block in blocks]


def backward_signature(
    graph: StepGraph, blocks: Sequence[Block], matches: Matches, owners: Sequence[int]
) -> list[Hashable]:
    """Returns for every block what the step computes for it after the forward, so far as its price depends on it."""
    gradients = Counter(_gradients(graph, matches))
    convolutions = Counter(_owners_of_convolutions(graph, owners))
    recomputed = {owners[position] for position in _recomputed(graph)}
    replaced = _replaced(graph, owners)
    found: list[Hashable] = []
    for block in blocks:
        shapes = {
            atom.aval.shape for place in block.contractions for atom in graph.equations[place].invars if is_var(atom)
        }
        updates = tuple(sorted((shape, replaced[block.number, shape]) for shape in shapes))
        of_each = tuple(tuple(gradients[position, place] for place in (0, 1)) for position in block.contractions)
        is_recomputed = not recomputed.isdisjoint((block.number - 1, block.number))
        found.append((of_each, convolutions[block.number], is_recomputed, updates))
    return found


def _gradients(graph: StepGraph, matches: Matches) -> list[tuple[int, int | None]]:
    """Returns the operands that backward contractions compute gradients of: contraction and place."""
    made = (matches.cotangents[graph.equations[position].outvars[0]] for position in matches.contractions)
    return [(cotangent.position, cotangent.place) for cotangent in made]


def _owners_of_convolutions(graph: StepGraph, owners: Sequence[int]) -> list[int]:
    """Returns the blocks of the convolutions in the backward."""
    steps = zip(graph.equations, graph.phases, owners, strict=True)
    return [
        owner
        for equation, phase, owner in steps
        if phase is EquationPhase.BACKWARD and equation.primitive.name == "conv_general_dilated"
    ]


def _recomputed(graph: StepGraph) -> list[int]:
    """Returns the contractions that are recomputed after the forward."""
    firsts = ((graph.definitions[var], graph.definitions.get(first)) for var, first in graph.first_values.items())
    return [
        first
        for position, first in firsts
        if first in graph.contractions
        and graph.phases[position] is not EquationPhase.FORWARD
        and graph.equations[position].primitive is graph.equations[first].primitive
    ]


def _replaced(graph: StepGraph, owners: Sequence[int]) -> Counter[tuple[int, tuple[int, ...]]]:
    """Counts the arrays of the state that the update computes, by block and shape."""
    step = graph.step
    results = {
        step.jaxpr.outvars[result]
        for result in step.result_of_input
        if result is not None and is_var(step.jaxpr.outvars[result])
    }
    positions = [(graph.definitions[var], var) for var in results if var in graph.definitions]
    return Counter(
        (owners[position], var.aval.shape)
        for position, var in positions
        if graph.phases[position] is EquationPhase.UPDATE
    )
