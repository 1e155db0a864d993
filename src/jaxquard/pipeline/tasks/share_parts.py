"""Splits tasks outside the loops so that actors share the part that is the same: it is compiled once.

    actor 0: after.0 { layer ; layer ; embedding }      actor 1: after.0 { layer ; layer }
    =>
    actor 0: after.0 { embedding }, after.0.shared { layer ; layer }      actor 1: after.0.shared { layer ; layer }

An optimizer updates every leaf by itself, and most leaves of a stage have equals in the other stages; only the first
and the last one have an embedding or a head beside. A task falls into components, which no value connects but scalars
that each can compute for itself (a step count). Equal components that several tasks have become a task of their own,
if they are many: the step launches one call more on an actor that has others beside.

A value that a task sends to another actor, such as a global norm, is not recomputed: the shared part takes it as an
input, as it does on the other actor, and runs after the part that makes it. So it is also sent earlier.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxquard.ir.jaxpr_tools import Equation, Var, definitions, fingerprint, make_jaxpr, sub_jaxprs, variables
from jaxquard.pipeline.tasks.task_code import ActorTask, Outer, TaskCode

MIN_EQUATIONS = 100
"""A shared part has at least so many; fewer compile quickly."""

_Where = tuple[int, int]
"""An actor, and the position of a task among those of its that are outside the loops."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Component:
    """A part of a task that needs no other part.

    Attributes:
        positions: its equations, with those of the scalars that it computes for itself.
        num_own: the equations without those.
        outputs: the outputs of the task that it makes.
        key: equal for components that compute the same; None for one that stays where it is.
    """

    positions: tuple[int, ...]
    num_own: int
    outputs: tuple[Var, ...]
    key: Any


def share_parts(rows: Sequence[Sequence[ActorTask]]) -> list[list[ActorTask]]:
    """Returns the tasks of each actor between two loops, with shared parts as tasks of their own."""
    if sum(bool(row) for row in rows) < 2:
        return [list(row) for row in rows]
    tasks = {(actor, position): task for actor, row in enumerate(rows) for position, task in enumerate(row)}
    sent = [_sent(rows, actor) for actor in range(len(rows))]
    components = {where: _find_components(task.code, sent[where[0]]) for where, task in tasks.items()}
    split: dict[_Where, list[ActorTask]] = {}
    for chosen in _choose(components):
        if len({tuple(component.key for component in components[where]) for where in chosen}) > 1:
            found = _split_all(tasks, components, chosen)
            if len({fingerprint(parts[-1].code.jaxpr) for parts in found.values()}) == 1:
                split.update(found)
    return [
        [part for position, task in enumerate(row) for part in split.get((actor, position), [task])]
        for actor, row in enumerate(rows)
    ]


def _sent(rows: Sequence[Sequence[ActorTask]], actor: int) -> set[Var]:
    """The values that an actor makes for others."""
    made = [_vars(value for task in row for value in task.code.outputs) for row in rows]
    taken = [_vars(value for task in row for value in task.code.inputs) for row in rows]
    others = (taken[other] - made[other] for other in range(len(rows)) if other != actor)
    return made[actor].intersection(set().union(*others))


def _vars(values: Iterable[Any]) -> set[Var]:
    return {value.var for value in values if isinstance(value, Outer)}


def _find_components(code: TaskCode, sent: Collection[Var]) -> list[_Component]:
    """The components of a task, in the order of their first equations."""
    equations = code.jaxpr.eqns
    definition = definitions(equations)
    needs = [
        [definition[var] for var in variables(equation.invars) if var in definition and var not in sent]
        for equation in equations
    ]
    repeated = _find_repeated(equations, needs, sent)
    roots = _connect(needs, repeated)
    members: dict[int, list[int]] = {}
    for position, root in enumerate(roots):
        if position not in repeated:
            members.setdefault(root, []).append(position)
    outputs: dict[int, list[Var]] = {}
    for var in code.jaxpr.outvars:
        outputs.setdefault(roots[definition[var]], []).append(var)
        if definition[var] in repeated:
            members.setdefault(definition[var], [definition[var]])
    taken_here = {var for equation in equations for var in variables(equation.invars)}.intersection(sent, definition)
    components = []
    for root, own in members.items():
        positions = _with_needs(own, needs, repeated)
        made = tuple(outputs.get(root, ()))
        stays = any(equations[p].effects or not taken_here.isdisjoint(equations[p].outvars) for p in positions)
        key = None if stays else fingerprint(_part_code("", code, positions, made).jaxpr)
        components.append(_Component(positions=positions, num_own=len(own), outputs=made, key=key))
    return components


def _find_repeated(equations: Sequence[Equation], needs: list[list[int]], sent: Collection[Var]) -> set[int]:
    """Equations of scalars alone, which every component that needs them can have for itself."""
    found: set[int] = set()
    for position, equation in enumerate(equations):
        atoms = (*equation.invars, *equation.outvars)
        is_scalar = not any(getattr(atom.aval, "shape", (1,)) for atom in atoms)
        is_simple = is_scalar and not equation.effects and not sub_jaxprs(equation)
        if is_simple and found.issuperset(needs[position]) and not any(var in sent for var in equation.outvars):
            found.add(position)
    return found


def _connect(needs: list[list[int]], repeated: Collection[int]) -> list[int]:
    """For each equation, the first one of its component; repeated ones stand alone."""
    roots = list(range(len(needs)))

    def find(position: int) -> int:
        while roots[position] != position:
            roots[position] = position = roots[roots[position]]
        return position

    for position, needed in enumerate(needs):
        for other in needed if position not in repeated else ():
            if other not in repeated:
                first, second = sorted((find(position), find(other)))
                roots[second] = first
    return [find(position) for position in range(len(needs))]


def _with_needs(own: Iterable[int], needs: list[list[int]], repeated: Collection[int]) -> tuple[int, ...]:
    found = set(own)
    waiting = list(found)
    while waiting:
        for other in needs[waiting.pop()]:
            if other not in found and other in repeated:
                found.add(other)
                waiting.append(other)
    return tuple(sorted(found))


def _choose(components: Mapping[_Where, list[_Component]]) -> list[dict[_Where, list[_Component]]]:
    """Chooses shared parts, those first that spare most: for each, the tasks that have it, and their components."""
    instances = _instances(components)
    candidates = [members for members in dict.fromkeys(map(frozenset, instances)) if len(members) > 1]
    sizes = {
        members: sum(having[next(iter(members))].num_own for having in instances if members <= having.keys())
        for members in candidates
    }
    chosen: list[dict[_Where, list[_Component]]] = []
    taken: set[_Where] = set()
    for members in sorted(candidates, key=lambda members: -sizes[members] * (len(members) - 1)):
        if sizes[members] >= MIN_EQUATIONS and taken.isdisjoint(members):
            taken |= members
            shared = [having for having in instances if members <= having.keys()]
            chosen.append({where: [having[where] for having in shared] for where in components if where in members})
    return chosen


def _instances(components: Mapping[_Where, list[_Component]]) -> list[dict[_Where, _Component]]:
    """Returns equal components together: the k-th of them in each task that has so many, in an order of their own."""
    found: dict[Any, dict[int, dict[_Where, _Component]]] = {}
    for where, of_task in components.items():
        count: Counter[Any] = Counter()
        for component in of_task:
            if component.key is not None:
                found.setdefault(component.key, {}).setdefault(count[component.key], {})[where] = component
                count[component.key] += 1
    return [having for numbered in found.values() for having in numbered.values()]


def _split_all(
    tasks: Mapping[_Where, ActorTask],
    components: Mapping[_Where, list[_Component]],
    chosen: Mapping[_Where, list[_Component]],
) -> dict[_Where, list[ActorTask]]:
    """The parts of each task: its own, if there is one, and the shared one, whose order is that of one of the tasks."""
    model = min(chosen, key=lambda where: len(components[where]))
    equations = _order([component.positions for component in chosen[model]])
    place = {var: number for number, var in enumerate(tasks[model].code.jaxpr.outvars)}
    outputs = _order([[place[var] for var in component.outputs] for component in chosen[model]])
    found = {}
    for where, shared in chosen.items():
        task = tasks[where]
        name = f"{task.code.name}.shared"
        positions = dict.fromkeys(shared[number].positions[index] for number, index in equations)
        made = [shared[number].outputs[index] for number, index in outputs]
        part = replace(task, label=name, code=_part_code(name, task.code, positions, made))
        found[where] = [*_rest(task, [one for one in components[where] if one not in shared]), part]
    return found


def _order(numbers: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Returns the order of numbers in several lists: each as the number of its list, and its index there."""
    found = [(number, which, index) for which, list_ in enumerate(numbers) for index, number in enumerate(list_)]
    return [(which, index) for _, which, index in sorted(found)]


def _rest(task: ActorTask, components: list[_Component]) -> list[ActorTask]:
    """A task of these components alone, if there are any."""
    if not components:
        return []
    positions = sorted({position for component in components for position in component.positions})
    made = {var for component in components for var in component.outputs}
    outputs = [var for var in task.code.jaxpr.outvars if var in made]
    return [replace(task, code=_part_code(task.code.name, task.code, positions, outputs))]


def _part_code(name: str, code: TaskCode, positions: Iterable[int], outputs: Iterable[Var]) -> TaskCode:
    """Some equations of a task, in this order, as a task."""
    equations = [code.jaxpr.eqns[position] for position in positions]
    defined = {var for equation in equations for var in equation.outvars}
    used = dict.fromkeys(var for equation in equations for var in variables(equation.invars))
    inputs = [var for var in used if var not in defined]
    made = list(outputs)
    return TaskCode(
        name=name,
        jaxpr=make_jaxpr(inputs, equations, made),
        inputs=tuple(map(Outer, inputs)),
        outputs=tuple(map(Outer, made)),
    )
