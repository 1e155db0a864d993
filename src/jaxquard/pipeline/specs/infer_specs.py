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
of control flow are followed inside.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from jaxquard._jax_compat import scan_counts
from jaxquard.ir.dependence import can_partition, dependences
from jaxquard.ir.dependence.link import DimLink, Links
from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, Var, is_var

Spec = tuple[tuple[str, ...], ...]
"""For each leading dim, the mesh axes over which it is sharded; dims beyond its end are whole."""


class SpecRules:
    """Infers specs on a mesh of given axis sizes."""

    def __init__(self, axis_sizes: Mapping[str, int]) -> None:
        self.axis_sizes = axis_sizes

    def follow(self, equations: Sequence[Equation], specs: dict[Var, Spec]) -> None:
        """Adds to `specs` the results of some equations."""
        for equation in equations:
            inputs = [specs.get(atom, ()) if is_var(atom) else () for atom in equation.invars]
            found: list[Spec] = [()] * len(equation.outvars)
            if any(map(any, inputs)) or equation.primitive.name == "sharding_constraint":
                rule = _RULES.get(equation.primitive.name, _by_links)
                found = rule(self, equation, inputs)
            for var, spec in zip(equation.outvars, found, strict=True):
                specs[var] = self.fit(spec, var.aval.shape)

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

    def call(self, jaxpr: Jaxpr, inputs: Sequence[Spec]) -> list[Spec]:
        """Returns the specs of a jaxpr's outputs."""
        specs = dict(zip(jaxpr.invars, inputs, strict=True))
        self.follow(jaxpr.eqns, specs)
        return [specs.get(atom, ()) if is_var(atom) else () for atom in jaxpr.outvars]

    def through(self, link: DimLink, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the axes of the input dim that the output dim keeps: the most major ones, by equation (2)."""
        axes = tuple(axis for axis in axes if axis in self.axis_sizes)
        while axes and not can_partition(link, self._num_shards(axes)):
            axes = axes[:-1]
        return axes

    def _num_shards(self, axes: Sequence[str]) -> int:
        return prod(self.axis_sizes[axis] for axis in axes)


def _axes(spec: Spec, dim: int) -> tuple[str, ...]:
    return spec[dim] if dim < len(spec) else ()


def _by_links(rules: SpecRules, equation: Equation, inputs: Sequence[Spec]) -> list[Spec]:
    """Each output dim is sharded as an input dim that it is linked with, or else as in an operand of its shape."""
    rows = dependences(equation).links
    return [
        _follow_row(rules, equation, row, inputs, var.aval.shape)
        for var, row in zip(equation.outvars, rows, strict=True)
    ]


def _follow_row(
    rules: SpecRules, equation: Equation, row: Sequence[Links], inputs: Sequence[Spec], shape: tuple[int, ...]
) -> Spec:
    linked: list[list[tuple[str, ...]]] = [[] for _ in shape]
    for links, spec in zip(row, inputs, strict=True):
        for link in links:
            linked[link.out_dim].append(rules.through(link, _axes(spec, link.in_dim)))
    alike = [s for atom, s in zip(equation.invars, inputs, strict=True) if atom.aval.shape == shape]
    return tuple(_first(found or [_axes(spec, dim) for spec in alike]) for dim, found in enumerate(linked))


def _first(candidates: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    return next((axes for axes in candidates if axes), ())


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
