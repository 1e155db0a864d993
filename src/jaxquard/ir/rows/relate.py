"""Walks two jaxprs side by side, the same function on the whole batch and on a part, and finds the law of each value.

Equations are paired in order: the same primitive on values that stand for each other. `one_row` has what JAX leaves
out, or writes in another way, on a part of one row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from jax import core

from jaxquard.ir.inline_calls import inline_calls
from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, Var, is_var, new_var, with_constants_as_inputs
from jaxquard.ir.rows.known import Known, evaluate_known, law_of, of_values
from jaxquard.ir.rows.law import Kind, Law, mixed
from jaxquard.ir.rows.one_row import adds_dims_of_one, longer_dims, may_differ, write_as_whole, write_left_out
from jaxquard.ir.rows.paired import PairedEquation, State
from jaxquard.ir.rows.rule_table import RULES
from jaxquard.ir.rows.rules import control_flow

_OTHER_CODE = "runs other operations on fewer rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRelations:
    """The laws of all values of a jaxpr.

    Attributes:
        whole, part: the jaxprs that were walked, without what nothing needs.
        states: of the variables of `whole`.
        twins: for each of these variables, the atom of `part` that stands for it.
        outputs: of the outputs.
    """

    whole: Jaxpr = field(repr=False)
    part: Jaxpr = field(repr=False)
    states: dict[Var, State] = field(repr=False)
    twins: dict[Var, Any] = field(repr=False)
    outputs: tuple[Law, ...]
    num_parts: int

    def law_of(self, var: Var) -> Law:
        """Returns the law of a variable of `whole`."""
        shapes = var.aval.shape, self.twins[var].aval.shape if var in self.twins else ()
        return _output_law(self.states[var], shapes, self.num_parts)

    def is_same(self, var: Var) -> bool:
        """Returns true for a variable whose value follows from the code alone, and is the same in a part."""
        state = self.states[var]
        return isinstance(state, Known) and state.is_same

    def has_one_shape(self, var: Var) -> bool:
        """Returns true for a variable that has the same shape in a part."""
        return var in self.twins and var.aval.shape == self.twins[var].aval.shape


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReader:
    """Relates bodies; those that were related before, under the same laws, are not walked again.

    Attributes:
        num_parts: into which the rows are split.
        draws_rows: random numbers that are drawn from one key for all rows count as rows of their own: each part draws
            its own, from a key of its own.
    """

    num_parts: int
    draws_rows: bool = False
    _memo: dict[Any, tuple[Any, Any, list[State]]] = field(default_factory=dict, repr=False)

    def relate(self, whole: Any, part: Any, states: Sequence[State], *, opens: bool = True) -> RowRelations:
        """Relates the values of two jaxprs, given the states of their inputs.

        Args:
            whole, part: closed; with `opens=False` jaxprs whose constants are their last inputs.
            states: of the inputs.
            opens: opens calls first, also of functions with derivatives of their own.
        """
        walk = _Walk(self, whole, part, states, opens=opens)
        walk.run()
        return RowRelations(
            whole=walk.whole,
            part=walk.part,
            states=walk.states,
            twins=walk.twins,
            outputs=tuple(walk.outputs()),
            num_parts=self.num_parts,
        )

    def relate_bodies(self, whole: Any, part: Any, states: Sequence[State]) -> list[State]:
        """Returns the states of the outputs of two bodies."""
        is_plain = all(isinstance(state, Law) for state in states)
        key = (id(whole), id(part), tuple(states)) if is_plain else None
        if key in self._memo:
            return self._memo[key][-1]
        walk = _Walk(self, whole, part, states)
        walk.run()
        found = [walk.state_of(atom, walk.part.outvars[place]) for place, atom in enumerate(walk.whole.outvars)]
        if key is not None:
            self._memo[key] = whole, part, found  # Bodies that are kept share their numbers with no others.
        return found


class _Walk:
    """One walk over two jaxprs."""

    def __init__(
        self, reader: RowReader, whole: Any, part: Any, states: Sequence[State], *, opens: bool = True
    ) -> None:
        self.reader = reader
        self.states: dict[Var, State] = {}
        self.twins: dict[Var, Any] = {}
        self.roots: dict[Var, Any] = {}
        (self.whole, values), (self.part, others) = (_opened(body) if opens else (body, ()) for body in (whole, part))
        constants = [of_values(*pair) for pair in zip(values, others, strict=False)]
        for var, twin, state in zip(self.whole.invars, self.part.invars, [*states, *constants], strict=False):
            self._set(var, twin, state)

    def run(self) -> None:
        place, equations = 0, self.part.eqns
        for equation in self.whole.eqns:
            part = self._find_pair(equation, equations[place]) if place < len(equations) else None
            while part is None and place < len(equations) and adds_dims_of_one(equations[place]):
                self.roots[equations[place].outvars[0]] = equations[place].invars[0]
                place += 1
                part = self._find_pair(equation, equations[place]) if place < len(equations) else None
            left_out = self._left_out(equation) if part is None else None
            if part is not None:
                self._relate(equation, part)
                place += 1
            elif left_out is not None:
                self._relate(equation, left_out)
                self.roots[left_out.outvars[0]] = left_out.invars[0]
            else:
                self.states.update(dict.fromkeys(equation.outvars, mixed(equation, _OTHER_CODE)))

    def _find_pair(self, whole: Equation, part: Equation) -> Equation | None:
        """Returns the part's equation, in the whole's form, if both are one operation on values that are twins."""
        if whole.primitive is not part.primitive or len(whole.invars) != len(part.invars):
            return None
        if len(whole.outvars) != len(part.outvars):
            return None
        twins, is_alike = [], True
        for atom, operand in zip(whole.invars, part.invars, strict=True):
            if not is_var(atom):
                twin = operand
                if is_var(operand):
                    return None
            else:
                twin = self.twins.get(atom)
                if twin is not operand:
                    if twin is None or not is_var(operand) or self._root(twin) is not self._root(operand):
                        return None
                    is_alike = is_alike and twin.aval.shape == operand.aval.shape
            twins.append(twin)
        if is_alike and not may_differ(whole, part):
            return part
        written = write_as_whole(whole, part, twins, self.reader.num_parts)
        if written is part:
            return part if is_alike else None
        pairs = zip((*written.outvars, *written.invars), (*part.outvars, *part.invars), strict=True)
        self.roots.update((one, other) for one, other in pairs if one is not other and is_var(one))
        return written

    def _left_out(self, whole: Equation) -> Equation | None:
        """Returns an equation that a part of one row may lack; None for any other."""
        twin = self.twins.get(whole.invars[0]) if whole.invars and is_var(whole.invars[0]) else None
        return None if twin is None else write_left_out(whole, twin, self.reader.num_parts)

    def outputs(self) -> list[Law]:
        found = []
        for atom, twin in zip(self.whole.outvars, self.part.outvars, strict=False):
            state = self.state_of(atom, twin)
            shapes = atom.aval.shape, twin.aval.shape
            found.append(_output_law(state, shapes, self.reader.num_parts))
        return found

    def state_of(self, atom: Any, twin: Any) -> State:
        """Returns the state of an atom whose counterpart is `twin`."""
        if not is_var(atom):
            return mixed(None, _OTHER_CODE) if is_var(twin) else of_values(atom.val, twin.val)
        state = self.states.get(atom)
        if state is None:
            return mixed(None, _OTHER_CODE)
        return state if state.is_mixed or self._is_twin(atom, twin) else mixed(None, _OTHER_CODE)

    def _set(self, var: Var, twin: Any, state: State) -> None:
        self.states[var], self.twins[var] = state, twin

    def _relate(self, whole: Equation, part: Equation) -> None:
        self.twins.update(zip(whole.outvars, part.outvars, strict=True))
        states = [
            self.states[atom] if is_var(atom) else of_values(atom.val, other.val)
            for atom, other in zip(whole.invars, part.invars, strict=True)
        ]
        for var, state in zip(whole.outvars, self._apply(whole, part, states), strict=True):
            self.states[var] = self._fit(var, state, whole)

    def _fit(self, var: Var, state: State, whole: Equation) -> State:
        """Holds a law against the shapes; where a dim of size 1 was taken for another, the law says which it is."""
        if not isinstance(state, Law) or state.kind in (Kind.MIXED, Kind.ZERO):
            return state
        shape, twin = list(var.aval.shape), self.twins[var]
        if state.kind is Kind.ROWS:
            shape[state.dim] //= self.reader.num_parts
        if tuple(shape) == twin.aval.shape:
            is_whole = state.kind is not Kind.ROWS or shape[state.dim] % (state.outer or 1) == 0
            return state if is_whole else mixed(whole, _OTHER_CODE)
        if longer_dims(shape) != longer_dims(twin.aval.shape):
            return mixed(whole, _OTHER_CODE)
        self.twins[var] = new_var(twin.aval.update(shape=tuple(shape)))
        self.roots[self.twins[var]] = twin
        return state

    def _apply(self, whole: Equation, part: Equation, states: list[State]) -> Sequence[State]:
        count = len(whole.outvars)
        pair = PairedEquation(
            whole=whole,
            part=part,
            num_parts=self.reader.num_parts,
            draws_rows=self.reader.draws_rows,
            relate=self.reader.relate_bodies,
        )
        if whole.primitive.name not in _SEE_MIXED:
            unknown = next((state for state in states if state.is_mixed), None)
            if unknown is not None:
                return [unknown] * count
        if count == 1 and states and all(isinstance(state, Known) for state in states):
            known = evaluate_known(whole, part, [state for state in states if isinstance(state, Known)])
            if known is not None:
                return [known]
        elif count == 1 and not states:
            known = evaluate_known(whole, part, [])
            if known is not None:
                return [known]
        rule = RULES.get(whole.primitive.name)
        if rule is None or not all(isinstance(atom.aval, core.ShapedArray) for atom in (*whole.invars, *whole.outvars)):
            return [pair.mixed(f"runs {whole.primitive.name}, which cannot be read")] * count
        has_totals = any(isinstance(state, Law) and state.kind is Kind.TOTAL for state in states)
        if has_totals and whole.primitive.name not in _KEEP_TOTALS:
            return [pair.mixed("reads, in a loop over rows, the sum of the rows before")] * count
        fixed = [name for name in whole.params if name not in _SIZES]
        if fixed and not pair.same_params(*fixed):
            return [pair.mixed("depends on the number of rows")] * count
        return rule(pair, states)

    def _is_twin(self, atom: Var, twin: Any) -> bool:
        expected = self.twins.get(atom)
        if expected is twin or expected is None or not is_var(twin):
            return expected is twin
        return expected.aval.shape == twin.aval.shape and self._root(expected) is self._root(twin)

    def _root(self, atom: Any) -> Any:
        while is_var(atom) and atom in self.roots:
            atom = self.roots[atom]
        return atom


# Rules for bodies look at mixed inputs: one that nothing reads harms nobody.
_SEE_MIXED = frozenset(control_flow.RULES)
# What may be done, in a loop over rows, to the sum of the rows before: to add to it, and to pass it on.
_KEEP_TOTALS = frozenset(
    """
    add add_any sub copy copy_p stop_gradient optimization_barrier convert_element_type checkpoint remat remat2
    """.split()
)
# Parameters that may differ, because rules read them or because they follow from the shapes.
_SIZES = frozenset(
    """
    shape sharding new_sizes dimensions slice_sizes start_indices limit_indices strides sizes padding_config length
    jaxpr call_jaxpr fun_jaxpr cond_jaxpr body_jaxpr branches jvp_jaxpr_fun fwd_jaxpr_thunk bwd out_trees
    jvp_jaxpr_thunk policy name in_shardings out_shardings in_layouts out_layouts ctx_mesh debug_info ft_in ft_out fwd
    callback broadcast_sizes operand_shape reps
    """.split()
)


def _output_law(state: State, shapes: tuple[Sequence[int], Sequence[int]], num_parts: int) -> Law:
    if isinstance(state, Law):
        return state
    if isinstance(state, Known):
        return law_of(state, shapes, num_parts, None)
    return mixed(None, "returns positions of rows in their batch")


def _opened(body: Any) -> tuple[Jaxpr, tuple[Any, ...]]:
    """Returns a body with its calls open, and the values of its last inputs."""
    opened = with_constants_as_inputs(body) if hasattr(body, "consts") else (body, ())
    return inline_calls(*opened, ignores_shardings=True)
