"""Infers the partition spec of each value over an actor's mesh, from the specs of the arguments.

    b = reshape[new_sizes=(8, 2, 3)] a      (a: float32[8,6], its first dim sharded over data)
    =>
    b is sharded over data along its first dim

Values that cross from one task to another need a sharding that both sides know before either is
compiled. Any choice is right, since XLA reshards where a task wants another; a good one costs no
communication. So the specs of the arguments and the user's constraints are followed through the
step, forward and backward alike, by the links of `ir.dependence`: an output dim gets the mesh axes of
the first input dim that it is linked with, as far as equation (2) of CFP allows. Where nothing is
linked, it gets those of an operand of the same shape, as XLA's propagation does. Bodies of calls and
of control flow are followed inside. Explicit axes are not inferred: the type of a value names them.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from math import prod
from typing import Any

from jax.sharding import AbstractMesh

from jaxquard._jax_compat import scan_counts
from jaxquard.ir.dependence import can_partition, dependences
from jaxquard.ir.dependence.link import DimLink, Links
from jaxquard.ir.dependence.rules.elementwise import ELEMENTWISE
from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, Var, is_var
from jaxquard.ir.typed_shardings import auto_axes, explicit_axes, type_axes

Spec = tuple[tuple[str, ...], ...]
"""For each leading dim, the mesh axes over which it is sharded; dims beyond its end are whole."""


class SpecRules:
    """Infers specs on a mesh of given axis sizes.

    Args:
        axis_sizes: the axes that specs may name.
        explicit: those of them that types name; they are taken from there.
    """

    def __init__(self, axis_sizes: Mapping[str, int], *, explicit: frozenset[str] = frozenset()) -> None:
        self.axis_sizes, self._explicit = axis_sizes, explicit
        self._elementwise_links: dict[Any, Sequence[Sequence[Links]]] = {}

    @classmethod
    def on(cls, mesh: AbstractMesh | None) -> "SpecRules":
        """Returns the rules for a mesh; without one, every value is whole."""
        return cls({} if mesh is None else dict(mesh.shape), explicit=explicit_axes(mesh))

    @classmethod
    def on_auto_axes(cls, mesh: AbstractMesh) -> "SpecRules":
        """Returns the rules that know only the axes which are in no type."""
        return cls({axis: mesh.shape[axis] for axis in mesh.axis_names if axis in auto_axes(mesh)})

    def follow(self, equations: Sequence[Equation], specs: dict[Var, Spec]) -> None:
        """Adds to `specs` the results of some equations."""
        for equation in equations:
            inputs = [specs.get(atom, ()) if is_var(atom) else () for atom in equation.invars]
            found: list[Spec] = [()] * len(equation.outvars)
            if any(map(any, inputs)) or equation.primitive.name == "sharding_constraint":
                rule = _RULES.get(equation.primitive.name, _by_links)
                found = rule(self, equation, inputs)
            for var, spec in zip(equation.outvars, found, strict=True):
                specs[var] = self.fit_type(spec, var.aval)

    def fit(self, spec: Spec, shape: Sequence[int]) -> Spec:
        """Returns the spec without axes that are used twice or do not divide their dim."""
        seen: set[str] = set()
        fitted = []
        for axes, size in zip(spec, shape, strict=False):
            kept = tuple(axis for axis in axes if axis not in seen and axis in self.axis_sizes)
            if kept and size % self._num_shards(kept):
                kept = ()
            seen.update(kept)
            fitted.append(kept)
        while fitted and not fitted[-1]:
            fitted.pop()
        return tuple(fitted)

    def fit_type(self, spec: Spec, aval: Any) -> Spec:
        """Returns the spec as `fit` does, with the explicit axes that the type names, and no others of them."""
        if not self._explicit:
            return self.fit(spec, aval.shape)
        typed = type_axes(aval)
        inferred = tuple(tuple(axis for axis in axes if axis not in self._explicit) for axes in spec)
        counts = [self._num_shards(axes) for axes in typed] + [1] * (len(aval.shape) - len(typed))
        fitted = self.fit(inferred, [size // count for size, count in zip(aval.shape, counts, strict=True)])
        return tuple((*first, *second) for first, second in zip_longest(typed, fitted, fillvalue=()))

    def call(self, jaxpr: Jaxpr, inputs: Sequence[Spec]) -> list[Spec]:
        """Returns the specs of a jaxpr's outputs."""
        specs = dict(zip(jaxpr.invars, inputs, strict=True))
        self.follow(jaxpr.eqns, specs)
        return [specs.get(atom, ()) if is_var(atom) else () for atom in jaxpr.outvars]

    def links(self, equation: Equation) -> Sequence[Sequence[Links]]:
        """Returns the links of an equation; those of elementwise operations, which are many, once for each shape."""
        if equation.primitive.name not in ELEMENTWISE:
            return dependences(equation).links
        key = tuple(atom.aval.shape for atom in (*equation.outvars, *equation.invars))
        if key not in self._elementwise_links:
            self._elementwise_links[key] = dependences(equation).links
        return self._elementwise_links[key]

    def through(self, link: DimLink, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the axes of the input dim that the output dim keeps: the most major ones, by equation (2)."""
        if not axes:
            return ()
        axes = tuple(axis for axis in axes if axis in self.axis_sizes and axis not in self._explicit)
        while axes and not can_partition(link, self._num_shards(axes)):
            axes = axes[:-1]
        return axes

    def _num_shards(self, axes: Sequence[str]) -> int:
        return prod(self.axis_sizes[axis] for axis in axes)


def _axes(spec: Spec, dim: int) -> tuple[str, ...]:
    return spec[dim] if dim < len(spec) else ()


def _by_links(rules: SpecRules, equation: Equation, inputs: Sequence[Spec]) -> list[Spec]:
    """Each output dim is sharded as an input dim that it is linked with, or else as in an operand of its shape."""
    rows = rules.links(equation)
    return [
        _follow_row(rules, equation, row, inputs, var.aval.shape)
        for var, row in zip(equation.outvars, rows, strict=True)
    ]


def _follow_row(
    rules: SpecRules, equation: Equation, row: Sequence[Links], inputs: Sequence[Spec], shape: tuple[int, ...]
) -> Spec:
    linked: list[tuple[str, ...] | None] = [None] * len(shape)
    for links, spec in zip(row, inputs, strict=True):
        for link in links:
            linked[link.out_dim] = linked[link.out_dim] or rules.through(link, _axes(spec, link.in_dim))
    if None not in linked:
        return tuple(axes or () for axes in linked)
    alike = [s for atom, s in zip(equation.invars, inputs, strict=True) if atom.aval.shape == shape]
    return tuple(_first(alike, dim) if axes is None else axes for dim, axes in enumerate(linked))


def _first(specs: Sequence[Spec], dim: int) -> tuple[str, ...]:
    return next((axes for spec in specs if (axes := _axes(spec, dim))), ())


def _constraint(rules: SpecRules, equation: Equation, inputs: Sequence[Spec]) -> list[Spec]:
    given = getattr(equation.params["sharding"], "spec", None)
    return [inputs[0] if given is None else spec_of(given)]


def _shard_map(rules: SpecRules, equation: Equation, inputs: Sequence[Spec]) -> list[Spec]:
    return [spec_of(spec) for spec in equation.params["out_specs"]]


def _call(rules: SpecRules, equation: Equation, inputs: Sequence[Spec]) -> list[Spec]:
    body = equation.params["jaxpr"] if "jaxpr" in equation.params else equation.params["call_jaxpr"]
    return rules.call(getattr(body, "jaxpr", body), inputs)


def _scan(rules: SpecRules, equation: Equation, inputs: Sequence[Spec]) -> list[Spec]:
    consts, carry = scan_counts(equation.params)
    inner = [*inputs[: consts + carry], *(spec[1:] for spec in inputs[consts + carry :])]
    results = rules.call(equation.params["jaxpr"].jaxpr, inner)
    return [*results[:carry], *(((), *spec) for spec in results[carry:])]


def _while(rules: SpecRules, equation: Equation, inputs: Sequence[Spec]) -> list[Spec]:
    return list(inputs[equation.params["cond_nconsts"] + equation.params["body_nconsts"] :])


def _cond(rules: SpecRules, equation: Equation, inputs: Sequence[Spec]) -> list[Spec]:
    return rules.call(equation.params["branches"][0].jaxpr, inputs[1:])


def spec_of(partition: Any) -> Spec:
    """Returns a `PartitionSpec` as plain data."""
    return tuple(
        () if axes is None else tuple(axes) if isinstance(axes, tuple) else (axes,) if isinstance(axes, str) else ()
        for axes in partition
    )


_CALLS = "checkpoint closed_call core_call custom_jvp_call custom_vjp_call eval_jaxpr jit pjit remat2"

# What links do not say; every other primitive is followed by its links.
_RULES: dict[str, Callable[[SpecRules, Equation, Sequence[Spec]], list[Spec]]] = {
    "sharding_constraint": _constraint,
    "shard_map": _shard_map,
    "scan": _scan,
    "while": _while,
    "cond": _cond,
    **dict.fromkeys(_CALLS.split(), _call),
}
