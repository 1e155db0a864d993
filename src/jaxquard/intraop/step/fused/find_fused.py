"""Finds values with a fused dim: equal parts, one after the other, that the step takes apart again.

    c = dot_general x w          c[b,s,192], and of w[64,192] the columns
    d = add c bias
    q k v = split[3] d           d has a fused dim of 3 parts, and so have c, and the columns of w

A step takes parts apart by `split`, by slices, or by a reshape whose new dim it then indexes. The gradient of such a
value has the same parts: it meets the weight again, and is put together from the gradients of the parts. Only products
with a weight of one free dim are looked at: one of several has its parts apart already. What stands between the product
and its parts may have no other use: a stream that runs through all layers is not taken apart for one that halves it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from jaxquard.intraop.step.phases import same_values
from jaxquard.ir.dependence.rules.elementwise import ELEMENTWISE
from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, Var, definitions, is_var, users
from jaxquard.ir.open_checkpoints import is_transposed
from jaxquard.ir.typed_shardings import type_sharding


@dataclass(frozen=True, slots=True, kw_only=True)
class FusedDim:
    """A dim of so many equal parts."""

    dim: int
    parts: int

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Returns the shape of an array with the parts in a dim of their own, before what is in each."""
        size = shape[self.dim]
        assert size % self.parts == 0 or size == 1, (shape, self)
        inner = (1, 1) if size == 1 else (self.parts, size // self.parts)
        return (*shape[: self.dim], *inner, *shape[self.dim + 1 :])

    def at(self, dim: int) -> "FusedDim":
        """Returns as many parts of another dim."""
        return FusedDim(dim=dim, parts=self.parts)


@dataclass(slots=True, kw_only=True)
class FusedValues:
    """The values of a step with a fused dim.

    Attributes:
        values: activations and their gradients, that the step computes.
        weights: that they are products with, by the first variable of the same value.
        first: the first variable that each later one equals.
    """

    values: dict[Var, FusedDim] = field(default_factory=dict)
    weights: dict[Var, FusedDim] = field(default_factory=dict)
    first: Mapping[Var, Var] = field(default_factory=dict)

    def weight(self, atom: Var) -> FusedDim | None:
        """Returns the fused dim of a weight; None for anything else."""
        return self.weights.get(self.first.get(atom, atom)) if is_var(atom) else None


def free_dims(equation: Equation, side: int) -> list[int]:
    """Returns the dims of an operand of a `dot_general` that are neither contracted nor batch dims."""
    contracted, batch = equation.params["dimension_numbers"]
    rank = len(equation.invars[side].aval.shape)
    return [dim for dim in range(rank) if dim not in contracted[side] and dim not in batch[side]]


def find_fused(jaxpr: Jaxpr) -> FusedValues:
    """Returns the values with fused dims; none of most steps."""
    finder = _Finder(jaxpr)
    finder.find_products()
    if finder.found.values:
        finder.find_gradients()
    return finder.found


class _Finder:
    def __init__(self, jaxpr: Jaxpr):
        self.equations = jaxpr.eqns
        self.definitions = definitions(jaxpr.eqns)
        self.users = users(jaxpr.eqns)
        self.found = FusedValues()
        # Of each product, the weight with its fused dim, and the other operand.
        self.products: list[tuple[Var, FusedDim, Var]] = []

    def find_products(self) -> None:
        """Marks the products whose result the forward takes apart, and what stands between."""
        for equation in self.equations:
            if not is_transposed(equation):
                for var, fused in self._taken_apart(equation):
                    self._mark(var, fused)

    def find_gradients(self) -> None:
        """Marks the gradients of the products: those that meet the fused columns of a weight, or what it multiplied."""
        self.found.first = first = same_values(self.equations)
        multiplied: dict[Var, set[tuple[int, int]]] = {}
        for weight, fused, data in self.products:
            self.found.weights.setdefault(first.get(weight, weight), fused)
            columns = weight.aval.shape[fused.dim]
            multiplied.setdefault(first.get(data, data), set()).add((columns, fused.parts))
        for equation in self.equations:
            if not is_transposed(equation) or equation.primitive.name not in ("dot_general", *ELEMENTWISE):
                continue
            out = equation.outvars[0]
            if first.get(out, out) in self.found.values:
                # A checkpoint computes it again.
                self.found.values[out] = self.found.values[first.get(out, out)]
            elif equation.primitive.name == "dot_general":
                for side in (0, 1):
                    self._mark_gradient(equation, side, multiplied)

    def _mark_gradient(self, equation: Equation, side: int, multiplied: Mapping[Var, set[tuple[int, int]]]) -> None:
        """Marks the other operand of a product of the backward, given one."""
        own, other = equation.invars[side], equation.invars[1 - side]
        if not is_var(own) or not is_var(other):
            return
        contracted, _ = equation.params["dimension_numbers"]
        weight, free = self.found.weight(own), free_dims(equation, 1 - side)
        if weight is not None and weight.dim in contracted[side]:
            self._mark(other, weight.at(contracted[1 - side][contracted[side].index(weight.dim)]))
        elif len(free) == 1:
            for columns, parts in multiplied.get(self.found.first.get(own, own), ()):
                if other.aval.shape[free[0]] == columns:
                    self._mark(other, FusedDim(dim=free[0], parts=parts))

    def _taken_apart(self, equation: Equation) -> Iterable[tuple[Var, FusedDim]]:
        """Yields a value that an equation takes apart into equal parts, with the dim along which it does."""
        name = equation.primitive.name
        if name not in ("split", "slice", "reshape") or not is_var(equation.invars[0]):
            return
        var = equation.invars[0]
        if name == "split":
            sizes = equation.params["sizes"]
            is_even = len(sizes) > 1 and len(set(sizes)) == 1 and sizes[0] > 1
            if is_even and len(self._forward_users(var)) == 1:
                yield var, FusedDim(dim=equation.params["axis"], parts=len(sizes))
        elif name == "slice":
            fused = self._sliced(var)
            if fused is not None and fused.parts < var.aval.shape[fused.dim]:
                yield var, fused
        else:
            dim = _new_major_dim(equation)
            is_split = dim is not None and len(self._forward_users(var)) == 1
            if dim is not None and is_split and self._is_indexed(equation.outvars[0], dim):
                yield var, FusedDim(dim=dim, parts=equation.outvars[0].aval.shape[dim])

    def _sliced(self, var: Var) -> FusedDim | None:
        """Returns the dim along which the forward slices a value into equal parts, two or more; None for none."""
        slices = [_slice_bounds(self.equations[place]) for place in self._forward_users(var)]
        if len(slices) < 2 or None in slices:
            return None
        bounds = {one for one in slices if one is not None}
        dims, sizes = {dim for dim, _, _ in bounds}, {stop - start for _, start, stop in bounds}
        if len(dims) != 1 or len(sizes) != 1 or len(bounds) < 2:
            return None
        (dim,), (size,) = dims, sizes
        whole = var.aval.shape[dim]
        if whole % size or any(start % size for _, start, _ in bounds):
            return None
        return FusedDim(dim=dim, parts=whole // size)

    def _is_indexed(self, var: Var, dim: int) -> bool:
        """Returns true if the forward takes the entries of a dim one by one, after transposing the value or not."""
        places = self._forward_users(var)
        equation = self.equations[places[0]] if len(places) == 1 else None
        if equation is not None and equation.primitive.name in ("transpose", *ELEMENTWISE):
            moved = equation.params["permutation"].index(dim) if equation.primitive.name == "transpose" else dim
            is_same = len(equation.outvars[0].aval.shape) == len(var.aval.shape)
            return is_same and self._is_indexed(equation.outvars[0], moved)
        if equation is not None and equation.primitive.name == "split":
            return equation.params["axis"] == dim and set(equation.params["sizes"]) == {1}
        found = self._sliced(var)
        return found is not None and found == FusedDim(dim=dim, parts=var.aval.shape[dim])

    def _forward_users(self, var: Var) -> list[int]:
        return [place for place in self.users.get(var, ()) if not is_transposed(self.equations[place])]

    def _mark(self, var: Var, fused: FusedDim) -> bool:
        """Marks a value and what it is computed from, back to a product, or to where its parts are put together."""
        if var in self.found.values:
            return self.found.values[var] == fused
        position = self.definitions.get(var)
        if position is None or var.aval.shape[fused.dim] % fused.parts or type_sharding(var.aval) is not None:
            return False
        equation = self.equations[position]
        if len(equation.outvars) > 1:
            return False
        name = equation.primitive.name
        if name == "dot_general":
            is_marked = not is_transposed(equation) and self._mark_weight(equation, fused)
        elif name in ELEMENTWISE:
            whole = [atom for atom in equation.invars if is_var(atom) and atom.aval.shape == var.aval.shape]
            own = [atom for atom in whole if is_transposed(equation) or len(self._forward_users(atom)) == 1]
            is_marked = sum(self._mark(atom, fused) for atom in own) > 0
        else:
            is_marked = is_transposed(equation) and _puts_together(equation, fused)
        if is_marked:
            self.found.values[var] = fused
        return is_marked

    def _mark_weight(self, equation: Equation, fused: FusedDim) -> bool:
        _, batch = equation.params["dimension_numbers"]
        place = len(batch[0])
        for side in (0, 1):
            free = free_dims(equation, side)
            weight, data = equation.invars[side], equation.invars[1 - side]
            if place == fused.dim and len(free) == 1 and is_var(weight) and is_var(data):
                self.products.append((weight, fused.at(free[0]), data))
                return True
            place += len(free)
        return False


def _slice_bounds(equation: Equation) -> tuple[int, int, int] | None:
    """Returns the dim, start and stop of an equation that slices along one dim, without strides; None for others."""
    if equation.primitive.name != "slice":
        return None
    shape, params = equation.invars[0].aval.shape, equation.params
    bounds = zip(params["start_indices"], params["limit_indices"], strict=True)
    sliced = [(dim, start, stop) for dim, (start, stop) in enumerate(bounds) if (start, stop) != (0, shape[dim])]
    has_steps = params["strides"] is not None and set(params["strides"]) != {1}
    return sliced[0] if len(sliced) == 1 and not has_steps else None


def _new_major_dim(equation: Equation) -> int | None:
    """Returns the dim that a reshape splits, the first of two or more that it becomes; None if it splits none."""
    before, after = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    dim = next((dim for dim, (one, other) in enumerate(zip(before, after, strict=False)) if one != other), None)
    if dim is None or after[dim] < 2 or before[dim] % after[dim] or after[dim] >= before[dim]:
        return None
    return dim if len(after) > len(before) else None


def _puts_together(equation: Equation, fused: FusedDim) -> bool:
    """Returns true if an equation makes a fused dim of its parts."""
    (out,) = equation.outvars
    shape, size = out.aval.shape, out.aval.shape[fused.dim] // fused.parts
    name, first = equation.primitive.name, equation.invars[0].aval.shape
    if name == "concatenate":
        sizes = [atom.aval.shape[fused.dim] for atom in equation.invars]
        return equation.params["dimension"] == fused.dim and all(one % size == 0 for one in sizes)
    if name == "pad":
        padding = equation.params["padding_config"]
        others = [config for dim, config in enumerate(padding) if dim != fused.dim]
        low, high, interior = padding[fused.dim]
        is_even = all(amount % size == 0 for amount in (low, high, first[fused.dim]))
        return not any(map(any, others)) and interior == 0 and min(low, high) >= 0 and is_even
    if name == "reshape":
        return first[: fused.dim + 1] == (*shape[: fused.dim], fused.parts)
    return False
