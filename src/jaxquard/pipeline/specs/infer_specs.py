"""Guesses how each value is cut over an actor's mesh, from the specs of the arguments.

Values that cross from one task to another need a sharding that both sides know before either is
compiled. Any choice is right, since XLA reshards where a task wants another; a good one costs no
communication. So the specs of the arguments and the user's constraints are followed through the
step, forward and backward pass alike, by the same steps that XLA's propagation takes: a rule per
primitive, and the first operand of the same shape where there is no rule.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from jaxquard._jax_compat import scan_counts
from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, Var, is_var
from jaxquard.ir.operations import ELEMENTWISE

Spec = tuple[tuple[str, ...], ...]
Rule = Callable[[Equation, Sequence[Spec]], list[Spec]]


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
                rule = _RULES.get(equation.primitive.name, _default)
                found = rule(self, equation, inputs)
            for var, spec in zip(equation.outvars, found, strict=True):
                specs[var] = self.fit(spec, var.aval.shape)

    def fit(self, spec: Spec, shape: Sequence[int]) -> Spec:
        """The spec without axes that are used twice or do not divide their dim."""
        seen: set[str] = set()
        fitted = []
        for axes, size in zip(spec, shape, strict=False):
            kept = tuple(axis for axis in axes if axis not in seen and axis in self.axis_sizes)
            if kept and size % prod(self.axis_sizes[axis] for axis in kept):
                kept = ()
            seen.update(kept)
            fitted.append(kept)
        while fitted and not fitted[-1]:
            fitted.pop()
        return tuple(fitted)

    def call(self, jaxpr: Jaxpr, inputs: Sequence[Spec]) -> list[Spec]:
        """The specs of a jaxpr's outputs."""
        specs = dict(zip(jaxpr.invars, inputs, strict=True))
        self.follow(jaxpr.eqns, specs)
        return [specs.get(atom, ()) if is_var(atom) else () for atom in jaxpr.outvars]


def _axes(spec: Spec, dim: int) -> tuple[str, ...]:
    return spec[dim] if dim < len(spec) else ()


def _merge(specs: Sequence[Spec], ndim: int) -> Spec:
    return tuple(next((_axes(s, dim) for s in specs if _axes(s, dim)), ()) for dim in range(ndim))


def _same_shape(rules: SpecRules, equation: Equation, inputs: Sequence[Spec]) -> list[Spec]:
    """Each result is cut as the operands of its shape are."""
    results = []
    for var in equation.outvars:
        same = [s for atom, s in zip(equation.invars, inputs, strict=True) if atom.aval.shape == var.aval.shape]
        results.append(_merge(same, len(var.aval.shape)))
    return results


def _default(rules: SpecRules, equation: Equation, inputs: Sequence[Spec]) -> list[Spec]:
    return _same_shape(rules, equation, inputs)


def _same_sizes(rules: SpecRules, equation: Equation, inputs: Sequence[Spec]) -> list[Spec]:
    """Dims that keep their size keep their axes (slices, pads, concatenations, updates)."""
    before, after = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    kept = [_axes(inputs[0], dim) if before[dim] == after[dim] else () for dim in range(len(after))]
    return [tuple(kept)] * len(equation.outvars)


def _transpose(rules: SpecRules, equation: Equation, inputs: Sequence[Spec]) -> list[Spec]:
    return [tuple(_axes(inputs[0], dim) for dim in equation.params["permutation"])]


def _broadcast(rules: SpecRules, equation: Equation, inputs: Sequence[Spec]) -> list[Spec]:
    shape = equation.outvars[0].aval.shape
    spec: list[tuple[str, ...]] = [()] * len(shape)
    for dim, target in enumerate(equation.params["broadcast_dimensions"]):
        if equation.invars[0].aval.shape[dim] == shape[target]:
            spec[target] = _axes(inputs[0], dim)
    return [tuple(spec)]


def _squeeze(rules: SpecRules, equation: Equation, inputs: Sequence[Spec]) -> list[Spec]:
    dropped = {dim % len(equation.invars[0].aval.shape) for dim in equation.params["dimensions"]}
    return [_without(inputs[0], dropped, equation)]


def _reduce(rules: SpecRules, equation: Equation, inputs: Sequence[Spec]) -> list[Spec]:
    return [_without(inputs[0], set(equation.params["axes"]), equation)] * len(equation.outvars)


def _without(spec: Spec, dropped: set[int], equation: Equation) -> Spec:
    ndim = len(equation.invars[0].aval.shape)
    return tuple(_axes(spec, dim) for dim in range(ndim) if dim not in dropped)


def _reshape(rules: SpecRules, equation: Equation, inputs: Sequence[Spec]) -> list[Spec]:
    """Dims are matched in groups of equal size; axes of a group's first dim go to its first dim."""
    before, after = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    spec: list[tuple[str, ...]] = [()] * len(after)
    left = right = 0
    while left < len(before) and right < len(after):
        start_left, start_right = left, right
        size_left, size_right = before[left], after[right]
        left, right = left + 1, right + 1
        while size_left != size_right and (left < len(before) or right < len(after)):
            if size_left < size_right and left < len(before):
                size_left *= before[left]
                left += 1
            elif right < len(after):
                size_right *= after[right]
                right += 1
            else:
                break
        if size_left == size_right:
            spec[start_right] = _axes(inputs[0], start_left)
    return [tuple(spec)]


def _dot(rules: SpecRules, equation: Equation, inputs: Sequence[Spec]) -> list[Spec]:
    (contract_left, contract_right), (batch_left, batch_right) = equation.params["dimension_numbers"]
    left, right = (len(atom.aval.shape) for atom in equation.invars[:2])
    free_left = [dim for dim in range(left) if dim not in (*contract_left, *batch_left)]
    free_right = [dim for dim in range(right) if dim not in (*contract_right, *batch_right)]
    batch = [_axes(inputs[0], a) or _axes(inputs[1], b) for a, b in zip(batch_left, batch_right, strict=True)]
    return [
        (
            *batch,
            *(_axes(inputs[0], dim) for dim in free_left),
            *(_axes(inputs[1], dim) for dim in free_right),
        )
    ]


def _gather(rules: SpecRules, equation: Equation, inputs: Sequence[Spec]) -> list[Spec]:
    numbers = equation.params["dimension_numbers"]
    sizes, operand = equation.params["slice_sizes"], equation.invars[0].aval.shape
    hidden = {*numbers.collapsed_slice_dims, *getattr(numbers, "operand_batching_dims", ())}
    offset_sources = [dim for dim in range(len(operand)) if dim not in hidden]
    ndim = len(equation.outvars[0].aval.shape)
    spec: list[tuple[str, ...]] = [()] * ndim
    for target, source in zip(numbers.offset_dims, offset_sources, strict=False):
        if sizes[source] == operand[source]:
            spec[target] = _axes(inputs[0], source)
    batch_dims = [dim for dim in range(ndim) if dim not in numbers.offset_dims]
    for source, target in enumerate(batch_dims):
        spec[target] = _axes(inputs[1], source)
    return [tuple(spec)]


def _like_first(rules: SpecRules, equation: Equation, inputs: Sequence[Spec]) -> list[Spec]:
    return [inputs[0]] * len(equation.outvars)


def _each(rules: SpecRules, equation: Equation, inputs: Sequence[Spec]) -> list[Spec]:
    return list(inputs)


def _constraint(rules: SpecRules, equation: Equation, inputs: Sequence[Spec]) -> list[Spec]:
    given = getattr(equation.params["sharding"], "spec", None)
    return [inputs[0] if given is None else spec_of(given)]


def _shard_map(rules: SpecRules, equation: Equation, inputs: Sequence[Spec]) -> list[Spec]:
    return [spec_of(spec) for spec in equation.params["out_specs"]]


def _call(name: str) -> Callable[..., list[Spec]]:
    def rule(rules: SpecRules, equation: Equation, inputs: Sequence[Spec]) -> list[Spec]:
        body = equation.params.get(name)
        jaxpr = getattr(body, "jaxpr", body)
        if jaxpr is None or len(jaxpr.invars) != len(inputs):
            return _default(rules, equation, inputs)
        return rules.call(jaxpr, inputs)

    return rule


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
    """A `PartitionSpec` as plain data."""
    return tuple(
        () if axes is None else tuple(axes) if isinstance(axes, tuple) else (axes,) if isinstance(axes, str) else ()
        for axes in partition
    )


_RULES: dict[str, Callable[..., list[Spec]]] = {
    **dict.fromkeys(ELEMENTWISE, _same_shape),
    **dict.fromkeys(
        "slice dynamic_slice pad rev concatenate dynamic_update_slice cumsum cummax cumprod cumlogsumexp".split(),
        _same_sizes,
    ),
    **dict.fromkeys("scatter scatter-add scatter_add scatter_mul sort top_k".split(), _like_first),
    **dict.fromkeys("reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or argmax argmin".split(), _reduce),
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
    "squeeze": _squeeze,
    "reshape": _reshape,
    "dot_general": _dot,
    "gather": _gather,
    "sharding_constraint": _constraint,
    "optimization_barrier": _each,
    "shard_map": _shard_map,
    "remat2": _call("jaxpr"),
    "checkpoint": _call("jaxpr"),
    "jit": _call("jaxpr"),
    "closed_call": _call("call_jaxpr"),
    "custom_jvp_call": _call("call_jaxpr"),
    "custom_vjp_call": _call("call_jaxpr"),
    "scan": _scan,
    "while": _while,
    "cond": _cond,
}
