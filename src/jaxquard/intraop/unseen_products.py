"""Products that stand in a loop or a branch, where the analysis does not look."""

from collections.abc import Iterable

from jaxquard.intraop.source_lines import source_line
from jaxquard.ir.jaxpr_tools import Equation, sub_jaxprs

_PRODUCTS = frozenset({"dot_general", "conv_general_dilated"})
# A note names so many places.
_MOST_PLACES = 4


def unseen_products(equations: Iterable[Equation]) -> tuple[str, ...]:
    """A note that names the operators of a flat step with products inside; none if there are none."""
    places = dict.fromkeys(
        f"`{equation.primitive.name}` at {source_line(equation)}" for equation in equations if _inner_products(equation)
    )
    if not places:
        return ()
    named = list(places)[:_MOST_PLACES]
    if len(places) > len(named):
        named.append(f"{len(places) - len(named)} more")
    return (
        f"products not seen, so not planned: inside {', '.join(named)}. They run as the compiler likes; of loops and "
        "branches, only a `lax.scan` over stacked weights is opened.",
    )


def _inner_products(equation: Equation) -> bool:
    return any(
        inner.primitive.name in _PRODUCTS or _inner_products(inner)
        for jaxpr in sub_jaxprs(equation)
        for inner in jaxpr.eqns
    )
