"""Rewrites a sum over the batch so that the devices' shares stay apart (see `keep_sums_local`).

    g = reduce_sum[axes=(0,)] x      (x: float32[8,3], its first dim sharded over 4 devices)
    =>
    y = reshape[new_sizes=(4,2,3)] x ; h = reduce_sum[axes=(1,)] y      (h: float32[4,3], g = sum of h)

The rewrite starts at contractions, reductions and scatter-adds over the batch dim, and is carried
to the result through linear operations, sums, sharding constraints, of which the other axes stay, and scans that stack
gradients of layers.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from jaxquard._jax_compat import scan_counts
from jaxquard.ir.jaxpr_tools import (
    Equation,
    Jaxpr,
    Var,
    close,
    definitions,
    is_var,
    make_jaxpr,
    new_var,
    prune,
    splice,
    users,
)
from jaxquard.ir.open_checkpoints import open_checkpoints
from jaxquard.ir.operations import LINEAR, has_inexact_types
from jaxquard.ir.typed_shardings import type_sharding, with_dim
from jaxquard.pipeline.loop import Place
from jaxquard.pipeline.specs.infer_specs import Spec, SpecRules, spec_of

_LINEAR = LINEAR | {"mul", "div", "reduce_sum", "reduce_precision", "pad", "broadcast_in_dim"}


def _without_constants(equation: Equation) -> Jaxpr:
    """The body of a scan; arrays that it closed over come in as literals would."""
    closed = equation.params["jaxpr"]
    assert not closed.consts, "a traced scan hoists its constants into its operands"
    return closed.jaxpr


def _is_zero_literal(atom: Any) -> bool:
    return not is_var(atom) and complex(atom.val) == 0


class LocalSums:
    """Rewrites sums over the batch so that the devices' shares stay apart, in a first dim of their own."""

    def __init__(
        self,
        jaxpr: Jaxpr,
        specs: Mapping[Var, Spec],
        axes: tuple[str, ...],
        mesh: AbstractMesh,
        *,
        places: list[Place | None],
    ) -> None:
        self.jaxpr, self.specs, self.axes, self.mesh, self.places = jaxpr, specs, axes, mesh, places
        self.equations = list(jaxpr.eqns)
        self.count = prod(mesh.shape[axis] for axis in axes)
        self.definition = definitions(jaxpr.eqns)
        self.users = users(jaxpr.eqns)
        self.num_results = dict.fromkeys(self.definition, 0)
        for atom in jaxpr.outvars:
            if is_var(atom):
                self.num_results[atom] = self.num_results.get(atom, 0) + 1
        self.known: dict[Var, bool] = {}
        self.requested: dict[int, set[int]] = {}
        self.chain: set[Var] = set()
        self.written: dict[Var, Var] = {}
        # Operands before users, so that no chain of sums is too long for a recursion.
        for var in self.definition:
            self.can_keep_local(var)

    def can_keep_local(self, var: Any) -> bool:
        """Returns True for a sum over the batch that only its result needs."""
        if not is_var(var) or var not in self.definition:
            return False
        if var not in self.known:
            alone = len(self.users.get(var, ())) + self.num_results[var] == 1
            equation = self.equations[self.definition[var]]
            self.known[var] = alone and self._can_split(equation, var)
        return self.known[var]

    def _can_split(self, equation: Equation, var: Var) -> bool:
        name = equation.primitive.name
        if name == "dot_general":
            return self._contracted(equation) is not None
        if name == "reduce_sum" and self._reduced(equation) is not None:
            return True
        if name in ("scatter-add", "scatter_add"):
            return self._scattered(equation) is not None
        if name in ("add", "add_any"):
            return all(atom.aval.shape == var.aval.shape and self.can_keep_local(atom) for atom in equation.invars)
        if name == "scan":
            return self._inside_scan(equation, var) is not None
        if name == "sharding_constraint":
            return isinstance(equation.params["sharding"], NamedSharding) and self.can_keep_local(equation.invars[0])
        if name not in _LINEAR or not has_inexact_types(equation):
            return False
        if name == "pad" and not _is_zero_literal(equation.invars[1]):
            return False
        return self._linear_in(equation) is not None

    def _linear_in(self, equation: Equation) -> int | None:
        """Returns the operand of a linear operation that is kept local."""
        candidates = (0, 1) if equation.primitive.name == "mul" else (0,)
        return next((number for number in candidates if self.can_keep_local(equation.invars[number])), None)

    def _starts_here(self, equation: Equation) -> bool:
        """Returns True if the equation is the sum over the batch itself."""
        name = equation.primitive.name
        if name == "reduce_sum":
            return self._reduced(equation) is not None
        return name in ("dot_general", "scatter-add", "scatter_add")

    def request(self, var: Any) -> None:
        """Notes that a value will be written, before any is: a scan is rewritten for all of its outputs."""
        waiting = [var]
        while waiting:
            var = waiting.pop()
            self.chain.add(var)
            position = self.definition[var]
            equation = self.equations[position]
            if equation.primitive.name == "scan":
                self.requested.setdefault(position, set()).add(equation.outvars.index(var))
            elif equation.primitive.name in ("add", "add_any"):
                waiting.extend(equation.invars)
            elif not self._starts_here(equation):
                waiting.append(equation.invars[self._linear_in(equation) or 0])

    def find_sums(self, var: Any) -> list[Var]:
        """Returns the sums over the batch, here and in scans, of which a value is made."""
        waiting, found = [var], []
        while waiting:
            var = waiting.pop()
            equation = self.equations[self.definition[var]]
            if equation.primitive.name == "scan":
                inner = self._inside_scan(equation, var)
                assert inner is not None, "the value can be kept local"
                found += inner.find_sums(inner.jaxpr.outvars[equation.outvars.index(var)])
            elif equation.primitive.name in ("add", "add_any"):
                waiting.extend(equation.invars)
            elif self._starts_here(equation):
                found.append(var)
            else:
                waiting.append(equation.invars[self._linear_in(equation) or 0])
        return found

    def write_requested(self) -> None:
        """Writes all that was requested, operands first."""
        for var in sorted(self.chain, key=lambda var: self.definition[var]):
            self.write(var)

    def write(self, var: Any) -> Var:
        """Returns the value with the devices' shares apart."""
        if var not in self.written:
            position = self.definition[var]
            equation = self.equations[position]
            if equation.primitive.name == "scan":
                self._write_scan(position)
            else:
                self.written[var] = self._write(equation, self.places[position])
        return self.written[var]

    def _emit(self, fn: Callable[..., Any], inputs: Sequence[Any], place: Place | None) -> Var:
        made, (result,) = splice(lambda *arrays: [fn(*arrays)], inputs)
        self.equations.extend(made)
        self.places.extend([place] * len(made))
        return result

    def _write(self, equation: Equation, place: Place | None) -> Var:
        name = equation.primitive.name
        bind = lambda *arrays: equation.primitive.bind(*arrays, **equation.params)  # noqa: E731
        if name == "dot_general":
            return self._emit(self._split_dot(equation), equation.invars, place)
        if name == "reduce_sum" and self._starts_here(equation):
            return self._emit(self._split_reduce(equation), equation.invars, place)
        if name in ("scatter-add", "scatter_add"):
            return self._emit(self._split_scatter(equation), equation.invars, place)
        if name in ("add", "add_any"):
            return self._emit(bind, [self.write(atom) for atom in equation.invars], place)
        if name == "sharding_constraint":
            spec = spec_of(equation.params["sharding"].spec)
            return self._emit(lambda shares: self._keep(shares, spec), [self.write(equation.invars[0])], place)
        chosen = self._linear_in(equation)
        in_axes = tuple(0 if number == chosen else None for number in range(len(equation.invars)))
        operands = [self.write(a) if number == chosen else a for number, a in enumerate(equation.invars)]
        return self._emit(jax.vmap(bind, in_axes=in_axes), operands, place)

    def _keep(self, value: Any, spec: Spec) -> Any:
        """Constrains the first dim to the data axes."""
        rest = [tuple(axis for axis in kept if axis not in self.axes) or None for kept in spec]
        sharding = NamedSharding(self.mesh, PartitionSpec(self.axes, *rest))
        return lax.with_sharding_constraint(value, sharding)

    def _is_sharded(self, atom: Any, dim: int) -> bool:
        spec = self.specs.get(atom, ()) if is_var(atom) else ()
        return dim < len(spec) and spec[dim] == self.axes

    def _contracted(self, equation: Equation) -> int | None:
        """Returns the number of the contracted dim that is sharded over the data axes."""
        (left, right), _ = equation.params["dimension_numbers"]
        for number, (a, b) in enumerate(zip(left, right, strict=True)):
            if self._is_sharded(equation.invars[0], a) and self._is_sharded(equation.invars[1], b):
                return number
        return None

    def _split_dot(self, equation: Equation) -> Callable[..., Any]:
        (left, right), (batch_left, batch_right) = equation.params["dimension_numbers"]
        number = self._contracted(equation)
        assert number is not None
        a, b = left[number], right[number]

        def after(dims: Sequence[int], split: int) -> tuple[int, ...]:
            """Returns the dims once `split` has become two; it is the second of them itself."""
            return tuple(dim + (dim >= split) for dim in dims)

        numbers = (
            (after(left, a), after(right, b)),
            ((a, *after(batch_left, a)), (b, *after(batch_right, b))),
        )
        params = {**self._split_params(equation), "dimension_numbers": numbers}

        def run(lhs: Any, rhs: Any) -> Any:
            result = equation.primitive.bind(self._split_dim(lhs, a), self._split_dim(rhs, b), **params)
            return self._keep(result, self.specs.get(equation.outvars[0], ()))

        return run

    def _split_params(self, equation: Equation) -> dict[str, Any]:
        """Returns the parameters of a sum whose result has the devices' shares as its first dim."""
        if equation.params.get("out_sharding") is None:
            return equation.params
        return {**equation.params, "out_sharding": type_sharding(with_dim(equation.outvars[0].aval, self.count))}

    def _split_dim(self, array: Any, dim: int) -> Any:
        shape = array.shape
        return array.reshape(*shape[:dim], self.count, shape[dim] // self.count, *shape[dim + 1 :])

    def _reduced(self, equation: Equation) -> int | None:
        return next((dim for dim in equation.params["axes"] if self._is_sharded(equation.invars[0], dim)), None)

    def _split_reduce(self, equation: Equation) -> Callable[..., Any]:
        dim = self._reduced(equation)
        assert dim is not None
        axes = tuple(axis + (axis >= dim) for axis in equation.params["axes"])

        def run(array: Any) -> Any:
            apart = jnp.moveaxis(self._split_dim(array, dim), dim, 0)
            moved = tuple(axis + 1 if axis < dim else axis for axis in axes)
            return self._keep(
                lax.reduce_sum_p.bind(apart, **{**self._split_params(equation), "axes": moved}), self._spec(equation)
            )

        return run

    def _spec(self, equation: Equation) -> Spec:
        return self.specs.get(equation.outvars[0], ())

    def _scattered(self, equation: Equation) -> tuple[int, int] | None:
        """The dims of the indices and of the updates that are sharded over the data axes."""
        operand, indices, updates = equation.invars
        numbers = equation.params["dimension_numbers"]
        if getattr(numbers, "operand_batching_dims", ()) or not self._is_zero(operand):
            return None
        free = [dim for dim in range(len(updates.aval.shape)) if dim not in numbers.update_window_dims]
        for source, target in enumerate(free):
            if self._is_sharded(indices, source) and self._is_sharded(updates, target):
                return source, target
        return None

    def _is_zero(self, atom: Any) -> bool:
        position = self.definition.get(atom) if is_var(atom) else None
        if position is None or self.equations[position].primitive.name != "broadcast_in_dim":
            return False
        return _is_zero_literal(self.equations[position].invars[0])

    def _split_scatter(self, equation: Equation) -> Callable[..., Any]:
        found = self._scattered(equation)
        assert found is not None
        source, target = found
        one = lambda operand, indices, updates: equation.primitive.bind(  # noqa: E731
            operand, indices, updates, **equation.params
        )

        def run(operand: Any, indices: Any, updates: Any) -> Any:
            apart = jax.vmap(one, in_axes=(None, source, target))
            return self._keep(
                apart(operand, self._split_dim(indices, source), self._split_dim(updates, target)), self._spec(equation)
            )

        return run

    def _inside_scan(self, equation: Equation, var: Var) -> "LocalSums | None":
        """The rewriter of a scan's body, if an output that is stacked over the layers can be kept local."""
        _, num_carry = scan_counts(equation.params)
        number = equation.outvars.index(var)
        if number < num_carry:
            return None
        inner = self._scan_writer(equation)
        return inner if inner.can_keep_local(inner.jaxpr.outvars[number]) else None

    def _scan_writer(self, equation: Equation) -> "LocalSums":
        body = open_checkpoints(_without_constants(equation), with_barrier=True)
        first_xs = sum(scan_counts(equation.params))
        specs: dict[Var, Spec] = {}
        for number, (inside, atom) in enumerate(zip(body.invars, equation.invars, strict=True)):
            spec = self.specs.get(atom, ()) if is_var(atom) else ()
            specs[inside] = spec if number < first_xs else spec[1:]
        SpecRules.on_auto_axes(self.mesh).follow(body.eqns, specs)
        return LocalSums(body, specs, self.axes, self.mesh, places=[None] * len(body.eqns))

    def _write_scan(self, position: int) -> None:
        """Rewrites the outputs of a scan that are requested at once, so that it still runs once."""
        equation = self.equations[position]
        chosen = self.requested[position]
        inner = self._scan_writer(equation)
        for number in chosen:
            inner.request(inner.jaxpr.outvars[number])
        inner.write_requested()
        outputs = [inner.write(atom) if number in chosen else atom for number, atom in enumerate(inner.jaxpr.outvars)]
        results = list(equation.outvars)
        for number in chosen:
            results[number] = new_var(with_dim(results[number].aval, self.count, dim=1))
        body = close(prune(make_jaxpr(inner.jaxpr.invars, inner.equations, outputs)))
        self.equations[position] = equation.replace(outvars=results, params={**equation.params, "jaxpr": body})
        for number in chosen:
            self.written[equation.outvars[number]] = self._emit(
                lambda stacked: jnp.moveaxis(stacked, 1, 0), [results[number]], self.places[position]
            )
