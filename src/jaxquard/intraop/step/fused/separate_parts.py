"""Gives the parts of a fused product a dim of their own.

    c[b,s,192] = dot_general x w                     w3[64,3,64] = reshape w
    q k v = split[3] c                               c3[b,s,3,64] = dot_general x w3
                                              =>     q k v = slices of c3 along the parts

A sharding of the 192 columns of `c` gives the first device queries alone. Of `c3` the last dim can be sharded: each
device then has the same heads of all three, and attention needs no communication. Megatron reorders the columns of the
weight to this end, and its checkpoints with them. Here the weight is only viewed otherwise, so that state has the
user's own order at all times; `shardings.layouts` stores it sharded along its rows, and an all-to-all of the weight
brings it into the form of its use.

The backward is written alike: gradients are put together along the parts, and meet the weight in the same view. The
update has the user's shapes. Every step is numerically what it was: a reshape moves nothing.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax import lax

from jaxquard.intraop.step.fused.find_fused import FusedDim, FusedValues, find_fused, free_dims
from jaxquard.intraop.step.phases import EquationPhase, find_phases
from jaxquard.ir.dependence.rules.elementwise import ELEMENTWISE
from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, Var, is_var, make_jaxpr, new_var, prune, splice_traced


def separate_parts(jaxpr: Jaxpr) -> Jaxpr:
    """Returns the step with the parts of fused products apart; the same object if it has none."""
    found = find_fused(jaxpr)
    return _Writer(jaxpr, found).write() if found.values else jaxpr


class _Writer:
    """Writes the step. A value is there as the user has it, with its parts apart, or both, each made when needed."""

    def __init__(self, jaxpr: Jaxpr, found: FusedValues):
        self.jaxpr = jaxpr
        self.found = found
        self.equations: list[Equation] = []
        self.fused: dict[Var, FusedDim] = {}
        self.apart: dict[tuple[Var, FusedDim], Var] = {}
        self.joined: dict[Var, Var] = {}

    def write(self) -> Jaxpr:
        for equation, phase in zip(self.jaxpr.eqns, find_phases(self.jaxpr.eqns), strict=True):
            fused = self.found.values.get(equation.outvars[0]) if len(equation.outvars) == 1 else None
            is_written = (
                self._write_marked(equation, fused)
                if fused is not None
                else phase is not EquationPhase.UPDATE and self._write_use(equation, phase)
            )
            if not is_written:
                inputs = [self._whole(atom, equation) for atom in equation.invars]
                self.equations.append(equation.replace(invars=inputs))
        outputs = [self._whole(atom, self.jaxpr.eqns[-1]) for atom in self.jaxpr.outvars]
        return prune(make_jaxpr(self.jaxpr.invars, self.equations, outputs))

    def _write_marked(self, equation: Equation, fused: FusedDim) -> bool:
        """Writes an equation whose result has a fused dim, with the parts apart."""
        name = equation.primitive.name
        if name == "dot_general":
            return self._write_product(equation)
        if name in ELEMENTWISE:
            return self._write_elementwise(equation, fused)
        put_together = {"concatenate": _concatenate, "pad": _pad, "reshape": _reshape}[name]
        inputs = [self._whole(atom, equation) for atom in equation.invars]
        self._put(equation, fused, self._trace(equation, functools.partial(put_together, equation, fused), inputs)[0])
        return True

    def _write_use(self, equation: Equation, phase: EquationPhase) -> bool:
        """Writes an equation that takes a value with its parts apart; returns false if it has no rule for that."""
        var = next((atom for atom in equation.invars if is_var(atom) and atom in self.fused), None)
        if var is None:
            return False
        name, fused = equation.primitive.name, self.fused[var]
        if name == "dot_general":
            return self._write_product(equation)
        if name in ("split", "slice", "reshape") and _takes_parts(equation, fused):
            take = {"split": _split, "slice": _slice, "reshape": _reshape_back}[name]
            parts = self._trace(equation, functools.partial(take, equation, fused), [self._apart(var, fused, equation)])
            self.joined.update(zip(equation.outvars, parts, strict=True))
            return True
        if phase is not EquationPhase.BACKWARD or len(equation.outvars) > 1:
            return False
        if name in ELEMENTWISE:
            return equation.outvars[0].aval.shape == var.aval.shape and self._write_elementwise(equation, fused)
        if name in ("transpose", "reduce_sum"):
            change = {"transpose": _transposed, "reduce_sum": _summed}[name]
            params, after = change(equation, fused)
            self._emit(equation, [self._apart(var, fused, equation)], params, after)
            return True
        return False

    def _write_elementwise(self, equation: Equation, fused: FusedDim) -> bool:
        inputs = [self._apart(atom, fused, equation) if atom.aval.shape else atom for atom in equation.invars]
        self._emit(equation, inputs, equation.params, fused)
        return True

    def _write_product(self, equation: Equation) -> bool:
        """Writes a product of which a fused dim is contracted, or is a dim of the result."""
        own = [self._fused_dim(atom) for atom in equation.invars]
        contracted, batch = (list(map(list, dims)) for dims in equation.params["dimension_numbers"])
        pairs = list(zip(*contracted, strict=True))
        for side in (0, 1):
            # Both operands have the parts of a contracted dim, or neither.
            of_side = own[side]
            if of_side is not None and of_side.dim in contracted[side]:
                other = of_side.at(contracted[1 - side][contracted[side].index(of_side.dim)])
                if equation.invars[1 - side] in self.fused and own[1 - side] != other:
                    return False
                own[1 - side] = other
                break
        if not any(own) or any(one is not None and one.dim in batch[side] for side, one in enumerate(own)):
            return False
        kept = [(one is not None and one.dim not in contracted[side]) for side, one in enumerate(own)]
        if all(kept):
            own[1] = None
        numbers = (
            tuple(_expanded([pair[side] for pair in pairs], own[side]) for side in (0, 1)),
            tuple(_expanded(batch[side], own[side]) for side in (0, 1)),
        )
        inputs = [
            atom if one is None else self._apart(atom, one, equation)
            for atom, one in zip(equation.invars, own, strict=True)
        ]
        inputs = [self._whole(atom, equation) for atom in inputs]
        self._emit(equation, inputs, {**equation.params, "dimension_numbers": numbers}, _of_result(equation, own))
        return True

    def _fused_dim(self, atom: Any) -> FusedDim | None:
        """Returns the fused dim of an operand: of a value whose parts are apart, or of a weight."""
        if not is_var(atom):
            return None
        return self.fused.get(atom) or self.found.weight(atom)

    def _emit(self, equation: Equation, inputs: Sequence[Any], params: dict[str, Any], fused: FusedDim | None) -> None:
        """Adds an equation on other inputs, whose result has a fused dim, or none."""
        (out,) = equation.outvars
        made = out if fused is None else new_var(out.aval.update(shape=fused.shape(out.aval.shape)))
        self.equations.append(equation.replace(invars=list(inputs), outvars=[made], params=params))
        if fused is not None:
            self._put(equation, fused, made)

    def _put(self, equation: Equation, fused: FusedDim, made: Var) -> None:
        (out,) = equation.outvars
        self.fused[out] = fused
        self.apart[out, fused] = made

    def _apart(self, atom: Any, fused: FusedDim, at: Equation) -> Any:
        """Returns a value with its parts apart."""
        key = atom, fused
        if not is_var(atom) or key not in self.apart:
            shape = fused.shape(atom.aval.shape)
            (made,) = self._trace(at, lambda array: [lax.reshape(array, shape)], [self._whole(atom, at)])
            if not is_var(atom):
                return made
            self.apart[key] = made
        return self.apart[key]

    def _whole(self, atom: Any, at: Equation) -> Any:
        """Returns a value as the user has it."""
        if not is_var(atom):
            return atom
        if atom in self.fused and atom not in self.joined:
            shape = atom.aval.shape
            (made,) = self._trace(at, lambda array: [lax.reshape(array, shape)], [self.apart[atom, self.fused[atom]]])
            self.joined[atom] = made
        return self.joined.get(atom, atom)

    def _trace(self, at: Equation, fn: Callable[..., Sequence[Any]], inputs: Sequence[Any]) -> list[Any]:
        """Adds the equations of a small function, as if they stood where an equation does."""
        types = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in inputs]
        made, results = splice_traced(jax.make_jaxpr(lambda *arrays: list(fn(*arrays)))(*types), inputs)
        self.equations += [one.replace(source_info=at.source_info, ctx=at.ctx) for one in made]
        return results


def _expanded(dims: Sequence[int], fused: FusedDim | None) -> tuple[int, ...]:
    """Returns dims as they are once the parts have a dim of their own."""
    if fused is None:
        return tuple(dims)
    return tuple(new for dim in dims for new in _places(dim, fused))


def _places(dim: int, fused: FusedDim) -> tuple[int, ...]:
    """Returns where a dim is once the parts have a dim of their own: in two places if it is theirs."""
    if dim == fused.dim:
        return dim, dim + 1
    return (dim + (dim > fused.dim),)


def _of_result(equation: Equation, own: Sequence[FusedDim | None]) -> FusedDim | None:
    """Returns the fused dim of a product's result, given those of its operands."""
    _, batch = equation.params["dimension_numbers"]
    place = len(batch[0])
    for side, fused in enumerate(own):
        free = free_dims(equation, side)
        if fused is not None and fused.dim in free:
            return fused.at(place + free.index(fused.dim))
        place += len(free)
    return None


def _transposed(equation: Equation, fused: FusedDim) -> tuple[dict[str, Any], FusedDim]:
    permutation = equation.params["permutation"]
    params = {**equation.params, "permutation": _expanded(permutation, fused)}
    return params, fused.at(list(permutation).index(fused.dim))


def _summed(equation: Equation, fused: FusedDim) -> tuple[dict[str, Any], FusedDim | None]:
    axes = equation.params["axes"]
    params = {**equation.params, "axes": _expanded(axes, fused)}
    before = sum(axis < fused.dim for axis in axes)
    return params, None if fused.dim in axes else fused.at(fused.dim - before)


def _takes_parts(equation: Equation, fused: FusedDim) -> bool:
    """Returns true if an equation divides a fused dim between its parts, or not at all."""
    inner = equation.invars[0].aval.shape[fused.dim] // fused.parts
    if equation.primitive.name == "split":
        return equation.params["axis"] != fused.dim or not any(size % inner for size in equation.params["sizes"])
    if equation.primitive.name == "slice":
        bounds = equation.params["start_indices"][fused.dim], equation.params["limit_indices"][fused.dim]
        return equation.params["strides"] is None and not any(bound % inner for bound in bounds)
    return equation.params["dimensions"] is None


def _split(equation: Equation, fused: FusedDim, array: jax.Array) -> list[jax.Array]:
    if equation.params["axis"] != fused.dim:
        sizes, axis = equation.params["sizes"], _places(equation.params["axis"], fused)[0]
        pieces = lax.split(array, sizes, axis)
    else:
        inner = array.shape[fused.dim + 1]
        pieces = lax.split(array, [size // inner for size in equation.params["sizes"]], fused.dim)
    return [lax.reshape(piece, var.aval.shape) for piece, var in zip(pieces, equation.outvars, strict=True)]


def _slice(equation: Equation, fused: FusedDim, array: jax.Array) -> list[jax.Array]:
    inner = array.shape[fused.dim + 1]
    starts, stops = (list(equation.params[name]) for name in ("start_indices", "limit_indices"))
    starts[fused.dim : fused.dim + 1] = [starts[fused.dim] // inner, 0]
    stops[fused.dim : fused.dim + 1] = [stops[fused.dim] // inner, inner]
    return [lax.reshape(lax.slice(array, starts, stops), equation.outvars[0].aval.shape)]


def _reshape_back(equation: Equation, fused: FusedDim, array: jax.Array) -> list[jax.Array]:
    return [lax.reshape(array, equation.outvars[0].aval.shape)]


def _reshape(equation: Equation, fused: FusedDim, array: jax.Array) -> list[jax.Array]:
    return [lax.reshape(array, fused.shape(equation.outvars[0].aval.shape))]


def _concatenate(equation: Equation, fused: FusedDim, *arrays: jax.Array) -> list[jax.Array]:
    inner = equation.outvars[0].aval.shape[fused.dim] // fused.parts
    return [lax.concatenate([_in_parts(array, fused.dim, inner) for array in arrays], fused.dim)]


def _pad(equation: Equation, fused: FusedDim, array: jax.Array, value: jax.Array) -> list[jax.Array]:
    inner = equation.outvars[0].aval.shape[fused.dim] // fused.parts
    padding = [(int(low), int(high), int(inside)) for low, high, inside in equation.params["padding_config"]]
    low, high, _ = padding[fused.dim]
    padding[fused.dim : fused.dim + 1] = [(low // inner, high // inner, 0), (0, 0, 0)]
    return [lax.pad(_in_parts(array, fused.dim, inner), value, padding)]


def _in_parts(array: jax.Array, dim: int, inner: int) -> jax.Array:
    """Returns an array of some of the parts with the parts in a dim of their own."""
    return lax.reshape(array, (*array.shape[:dim], array.shape[dim] // inner, inner, *array.shape[dim + 1 :]))
