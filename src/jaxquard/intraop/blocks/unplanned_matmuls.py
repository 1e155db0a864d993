"""Notes on matrix products that are not planned.

They stand in a loop or a branch, which the analysis does not open; or have ragged groups in each of several batches; or
multiply by weights that count as data.
"""

from collections.abc import Iterable, Sequence

from jaxquard.intraop.blocks.contraction import Contraction
from jaxquard.intraop.blocks.graph import StepGraph
from jaxquard.ir.jaxpr_tools import Equation, Var, is_var, sub_jaxprs
from jaxquard.ir.operations import MATMULS
from jaxquard.ir.source import source_place

# Primitives that change the form of a weight, and not its values.
_FORMS = frozenset({"convert_element_type", "copy", "reshape", "transpose", "squeeze", "stop_gradient", "slice"})
# Products with weights that are not trained are worth a note from this part of the forward's multiplications on.
_MINIMUM_SHARE = 0.25
# A note names so many places.
_MOST_PLACES = 4


def step_notes(graph: StepGraph) -> tuple[str, ...]:
    """Returns all notes on a step that hold for every plan."""
    unknown = graph.unknown_primitives()
    no_rules = (f"operations without a rule, not partitioned: {', '.join(unknown)}",) if unknown else ()
    return (*no_rules, *unplanned_matmuls(graph.equations), *frozen_matmuls(graph), *graph.step.notes)


def unplanned_matmuls(equations: Iterable[Equation]) -> tuple[str, ...]:
    """Returns a note that names the operators of a flat step with products inside; none if there are none."""
    places = dict.fromkeys(
        f"{where}{_name(equation)}" for equation in equations if (where := _where(equation)) is not None
    )
    if not places:
        return ()
    return (
        f"matrix products not planned: {_list_some([*places])}. The compiler shards them; of loops and "
        "branches, only a `lax.scan` over stacked weights is opened.",
    )


def name_loops(equations: Iterable[Equation]) -> str:
    """Returns the loops and branches of a flat step with products inside, by their lines; "" if there are none."""
    return _list_some([*dict.fromkeys(_name(equation) for equation in equations if _has_inner_matmuls(equation))])


def _name(equation: Equation) -> str:
    return f"`{equation.primitive.name}` at {source_place(equation)}"


def _list_some(places: Sequence[str]) -> str:
    named = [*places[:_MOST_PLACES]]
    if len(places) > len(named):
        named.append(f"{len(places) - len(named)} more")
    return ", ".join(named)


def frozen_matmuls(graph: StepGraph) -> tuple[str, ...]:
    """Returns a note on weights that are not trained and come as an argument, if their products are many.

    Beside products with state, those of data with data begin no blocks: queries with keys, and these.
    """
    products = [found for found in graph.contractions.values() if not found.is_lookup]
    if not any(found.has_state for found in products):
        return ()
    names = dict(zip(graph.step.jaxpr.invars, graph.step.input_names, strict=True))
    frozen = {found.position: leaves for found in products if (leaves := _frozen_leaves(graph, found))}
    share = sum(graph.contractions[position].weight for position in frozen) / sum(found.weight for found in products)
    if share < _MINIMUM_SHARE:
        return ()
    # Where both operands are arguments, either may be the weight, so both are named.
    named = min(frozen.values(), key=len)
    name = " or ".join(names[leaf] for leaf in named)
    more = len({leaves[0] for leaves in frozen.values()}.difference(named))
    others = f" and {more} other{'' if more == 1 else 's'}" if more else ""
    return (
        f"products with {name}{others} are not planned, {share:.0%} of the forward's: the step does not return it, or "
        "it is a single array after the first argument, so that it counts as data. If these are weights that are not "
        "trained, bind them before the search (`functools.partial`), or return them with the state.",
    )


def _frozen_leaves(graph: StepGraph, product: Contraction) -> tuple[Var, ...]:
    """Returns the arguments that are no state, perhaps cast or transposed, in a product of data with data."""
    atoms = product.equation.invars
    if product.has_state or not all(is_var(atom) and atom in graph.data_vars for atom in atoms):
        return ()
    sides = (atoms[1 - product.data], atoms[product.data])
    return tuple(dict.fromkeys(source for atom in sides if (source := _source(graph, atom)) is not None))


def _source(graph: StepGraph, atom: Var) -> Var | None:
    """Returns the argument that a value is but for its form; None if it is computed."""
    while (position := graph.definitions.get(atom)) is not None:
        equation = graph.equations[position]
        if equation.primitive.name not in _FORMS:
            return None
        atom = equation.invars[0]
    return atom


def _where(equation: Equation) -> str | None:
    """Returns what a note says before the name of an equation with unplanned products; None for others."""
    if equation.primitive.name == "ragged_dot_general":
        return "" if _has_batch(equation) else None
    return "inside " if _has_inner_matmuls(equation) else None


def _has_batch(equation: Equation) -> bool:
    """Returns true for rows that are sorted by expert in each of several batches; others are contractions."""
    _, (batch, _) = equation.params["ragged_dot_dimension_numbers"].dot_dimension_numbers
    return bool(batch)


def _has_inner_matmuls(equation: Equation) -> bool:
    return any(
        inner.primitive.name in MATMULS or _has_inner_matmuls(inner)
        for jaxpr in sub_jaxprs(equation)
        for inner in jaxpr.eqns
    )
