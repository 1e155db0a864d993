"""Assigns every equation of a step to one block: forward, backward and update.

forward    in a block          its block
following a block   that block
input branches      the first block that uses them (CFP, section 3.3)
others              the last block that they use values of (a loss, what only the backward needs)
backward   a contraction       the block of the contraction that it computes a gradient of
recomputed          the block that computed it first
others              the block of the forward values that they use, or else that of their inputs;
what only updates state, the block of that state
update                         the block of the state; also where no gradient comes in (a frozen layer's, a mean of
old weights), which makes it forward
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from jaxquard.intraop.blocks.block import Block
from jaxquard.intraop.blocks.graph import StepGraph
from jaxquard.intraop.blocks.match_backward import Matches
from jaxquard.intraop.step.phases import COPIES, EquationPhase
from jaxquard.ir.jaxpr_tools import Var, variables


def assign_owners(graph: StepGraph, blocks: Sequence[Block], matches: Matches) -> list[int]:
    """Returns for each equation the number of its block."""
    owners: list[int | None] = [None] * len(graph.equations)
    for block in blocks:
        for position in (*block.equations, *block.followers):
            owners[position] = block.number
    _assign_forward(graph, owners)
    anchored = _assign_backward(graph, owners, matches)
    states = _state_owners(graph, owners)
    _assign_update(graph, owners, states)
    _pull_gradients(graph, owners, anchored)
    return [0 if owner is None else owner for owner in owners]


def _assign_forward(graph: StepGraph, owners: list[int | None]) -> None:
    """Gives input branches to their first user; what only the backward uses, or is a result, to its inputs' block."""
    for position in reversed(range(len(owners))):
        if owners[position] is None and graph.phases[position] is EquationPhase.FORWARD:
            consumers = _owners_of_users(graph, owners, graph.equations[position].outvars, EquationPhase.FORWARD)
            owners[position] = min(consumers, default=None)
    for position, equation in enumerate(graph.equations):
        if owners[position] is None and graph.phases[position] is EquationPhase.FORWARD:
            sources = [graph.definitions.get(var) for var in variables(equation.invars)]
            known = [_first_use(graph, owners, source) for source in sources if source is not None]
            owners[position] = max((owner for owner in known if owner is not None), default=None)


def _assign_backward(graph: StepGraph, owners: list[int | None], matches: Matches) -> set[int]:
    """Assigns the backward, and returns the equations whose block follows from a forward one."""
    anchored: set[int] = set()
    for position, equation in enumerate(graph.equations):
        if graph.phases[position] is not EquationPhase.BACKWARD:
            continue
        matched = matches.contractions.get(position)
        if matched is not None:
            owners[position] = owners[matched.forward]
            anchored.add(position)
            continue
        if equation.primitive.name in COPIES or not equation.outvars:
            continue
        again = _forward_source(graph, equation.outvars[0])
        if again is not None:
            owners[position] = owners[again]
            anchored.add(position)
            continue
        forward, backward = [], []
        for var in variables(equation.invars):
            source = _forward_source(graph, var)
            made = graph.definitions.get(graph.first(var))
            if source is not None:
                forward.append(_first_use(graph, owners, source))
            elif made is not None and graph.phases[made] is EquationPhase.BACKWARD:
                backward.append(owners[made])
        forward, backward = ([owner for owner in found if owner is not None] for found in (forward, backward))
        if forward:
            owners[position] = max(forward)
            anchored.add(position)
        elif backward:
            owners[position] = min(backward)
    for position in reversed(range(len(owners))):
        if owners[position] is None and graph.phases[position] is EquationPhase.BACKWARD:
            consumers = Counter(_owners_of_users(graph, owners, graph.equations[position].outvars))
            # Most of them: a checkpoint's barrier has all weights of a layer, and what the next layer computes again.
            owners[position] = max(consumers, key=lambda owner: (consumers[owner], owner), default=None)
    return anchored


def _forward_source(graph: StepGraph, var: Var) -> int | None:
    """Returns the forward equation that computes a value, or did first; None if several do (equal masks)."""
    source = graph.definitions.get(var)
    if source is None or graph.phases[source] is not EquationPhase.FORWARD:
        first = graph.first(var)
        source = None if first in graph.repeated else graph.definitions.get(first)
    return source if source is not None and graph.phases[source] is EquationPhase.FORWARD else None


def _first_use(graph: StepGraph, owners: list[int | None], source: int) -> int | None:
    """Returns the block that uses a forward value first: the gradient of that use is what uses it in the backward."""
    consumers = _owners_of_users(graph, owners, graph.equations[source].outvars, EquationPhase.FORWARD)
    return min(consumers, default=owners[source])


def _state_owners(graph: StepGraph, owners: list[int | None]) -> dict[Var, int]:
    """Returns the first block of each input that the forward uses; for others, that of the backward."""
    states: dict[Var, int] = {}
    for var in graph.step.jaxpr.invars:
        # The barrier of a checkpoint around all layers has all their weights, and is in one block.
        for phase in (EquationPhase.FORWARD, EquationPhase.BACKWARD):
            known = _owners_of_users(graph, owners, [var], phase)
            if known:
                states[var] = min(known)
                break
    return states


def _assign_update(graph: StepGraph, owners: list[int | None], states: dict[Var, int]) -> None:
    for position, equation in enumerate(graph.equations):
        is_left = owners[position] is None and graph.phases[position] is EquationPhase.FORWARD
        if graph.phases[position] is not EquationPhase.UPDATE and not is_left:
            continue
        arrays: list[int] = []
        scalars: list[int] = []
        for var in variables(equation.invars):
            source = graph.definitions.get(var)
            owner = states.get(var) if source is None else owners[source]
            if owner is not None:
                (arrays if var.aval.shape else scalars).append(owner)
        is_state = [states[var] for var in variables(equation.invars) if var in states and var.aval.shape]
        known = is_state or arrays or scalars
        owners[position] = max(known) if known else None
    for position in reversed(range(len(owners))):
        if owners[position] is None:
            owners[position] = min(_owners_of_users(graph, owners, graph.equations[position].outvars), default=None)


def _pull_gradients(graph: StepGraph, owners: list[int | None], anchored: set[int]) -> None:
    """Moves what follows from no forward value, and only feeds the update of one block, there: a bias's gradient."""
    only_updates: set[int] = set()
    for position in reversed(range(len(owners))):
        if graph.phases[position] is not EquationPhase.BACKWARD or position in anchored:
            continue
        consumers = {user for var in graph.equations[position].outvars for user in graph.users.get(var, ())}
        if not consumers or any(
            graph.phases[user] is not EquationPhase.UPDATE and user not in only_updates for user in consumers
        ):
            continue
        only_updates.add(position)
        wanted = {owners[user] for user in consumers}
        if len(wanted) == 1:
            owners[position] = wanted.pop()


def _owners_of_users(
    graph: StepGraph, owners: list[int | None], values: Iterable[Var], phase: EquationPhase | None = None
) -> list[int]:
    """Returns the known owners of the equations that use values, of one phase or of all."""
    users = (user for var in values for user in graph.users.get(var, ()) if phase in (None, graph.phases[user]))
    return [owner for owner in (owners[user] for user in users) if owner is not None]
