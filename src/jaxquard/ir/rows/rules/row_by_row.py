"""Operations along some dims that treat the others as a batch: sorts, running sums, transforms, matrix factorisations.

`ir.dependence` knows which dims are the batch. Along these, each of the operations here is the same function of every
element, and of no other, so rows there stay rows.
"""

from jaxquard.ir.dependence import dependences
from jaxquard.ir.rows.law import Kind, Law, rows
from jaxquard.ir.rows.paired import PairedEquation, Rule, State, rules_for

_ALONG = "works along the rows of the batch"


def _is_value(law: Law) -> bool:
    return law.kind in (Kind.SAME, Kind.ROWS, Kind.ZERO) and law.has_scale(1.0)


def _row_by_row(pair: PairedEquation, states: list[State]) -> list[State]:
    laws = pair.laws(states)
    count = len(pair.whole.outvars)
    if not all(map(_is_value, laws)):
        return [next((law for law in laws if law.is_mixed), pair.mixed(_ALONG))] * count
    return [_output_law(pair, laws, output) for output in range(count)]


def _output_law(pair: PairedEquation, laws: list[Law], output: int) -> Law:
    found: Law | None = None
    dependences_of = dependences(pair.whole)
    links, reads = dependences_of.links[output], dependences_of.reads[output]
    for position, law in enumerate(laws):
        if law.kind is not Kind.ROWS or not reads[position]:
            continue
        size = pair.in_shapes(position)[0][law.dim]
        dim = next(
            (link.out_dim for link in links[position] if (link.in_dim, link.num_chunks) == (law.dim, size)), None
        )
        if dim is None or dim != pair.out_row_dim(output):
            return pair.mixed(_ALONG)
        here = rows(dim, outer=law.outer, order=law.order)
        if found is not None and found.outer is not None and here.outer is not None and here != found:
            return pair.mixed("combines rows with rows in another order")
        found = here if found is None or found.outer is None else found
    if found is not None:
        return found
    return Law(kind=Kind.SAME) if pair.has_same_out_shapes(output) else pair.mixed(_ALONG)


def _linear(pair: PairedEquation, states: list[State]) -> list[State]:
    """Operations that are linear in one operand keep its sums and multiples."""
    laws = pair.laws(states)
    place = _LINEAR_OPERANDS[pair.name]
    law = laws[place]
    if law.kind is Kind.ZERO or law.is_mixed:
        return [law]
    if len(laws) == 1 and law.kind in (Kind.SAME, Kind.SUM) and pair.has_same_out_shapes():
        return [law]
    if law.kind not in (Kind.SAME, Kind.ROWS) or not law.scale:
        return [pair.mixed(_ALONG)]
    unscaled: list[State] = [*laws[:place], law.scaled(1 / law.scale), *laws[place + 1 :]]
    return [found.scaled(law.scale) for found in _row_by_row(pair, unscaled) if isinstance(found, Law)]


_NAMES = """
    sort top_k approx_top_k cumlogsumexp cummax cummin cumprod
    reduce_window reduce_window_max reduce_window_min
    select_and_scatter cholesky eig eigh hessenberg householder_product lu qr schur svd tridiagonal
    lu_pivots_to_permutation tridiagonal_solve
"""
# Which operand.
_LINEAR_OPERANDS = {
    "cumsum": 0,
    "fft": 0,
    "reduce_window_sum": 0,
    "select_and_gather_add": 0,
    "select_and_scatter_add": 0,
    "triangular_solve": 1,
}

RULES: dict[str, Rule] = rules_for(_NAMES, _row_by_row) | dict.fromkeys(_LINEAR_OPERANDS, _linear)
