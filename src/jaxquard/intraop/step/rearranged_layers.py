"""Operations that only rearrange layers: those of the result are layers of the inputs.

    a = slice[0:1] w ; b = squeeze a            b = w0
    c = pad[below=1] g ; d = add_any c e    =>  d0 = add_any g0 e0 ; d1 = e1

So an iteration that takes its two layers out of a stack of pairs has each by itself, and the gradients of both.
"""

from dataclasses import dataclass

from jaxquard.ir.jaxpr_tools import Equation, Var, is_var


@dataclass(frozen=True, slots=True, kw_only=True)
class Rearranged:
    """Where the layers of a result come from.

    Attributes:
        sources: for each layer of the result, an input and a layer of it; None for one of zeros.
        is_stacked: whether the inputs are stacks; else there is one, which is the layer.
        makes_stack: whether the result is a stack; else it is the layer.
    """

    sources: tuple[tuple[int, int] | None, ...]
    is_stacked: bool = True
    makes_stack: bool = True


def rearranged(equation: Equation) -> Rearranged | None:
    """How an operation rearranges layers; None if it does something else."""
    rule = _RULES.get(equation.primitive.name)
    return None if rule is None else rule(equation)


def rearranged_stacks(equation: Equation, form: Rearranged) -> list[Var]:
    """The stacks of such an operation, if one of them is one."""
    inputs = equation.invars[: 1 + max((source[0] for source in form.sources if source), default=0)]
    return [
        *(atom for atom in inputs if form.is_stacked and is_var(atom)),
        *(equation.outvars if form.makes_stack else ()),
    ]


def _slice(equation: Equation) -> Rearranged | None:
    starts, limits, strides = (equation.params[name] for name in ("start_indices", "limit_indices", "strides"))
    shape = equation.invars[0].aval.shape
    if starts[0] == limits[0]:
        return None
    if any(starts[1:]) or tuple(limits[1:]) != shape[1:] or (strides and any(stride != 1 for stride in strides)):
        return None
    return Rearranged(sources=tuple((0, layer) for layer in range(starts[0], limits[0])))


def _squeeze(equation: Equation) -> Rearranged | None:
    if tuple(equation.params["dimensions"]) != (0,):
        return None
    return Rearranged(sources=((0, 0),), makes_stack=False)


def _expand(equation: Equation) -> Rearranged | None:
    shape, operand = equation.outvars[0].aval.shape, equation.invars[0].aval.shape
    dims = equation.params.get("broadcast_dimensions", range(1, len(shape)))
    if len(equation.invars) > 1 or shape != (1, *operand) or tuple(dims) != tuple(range(1, len(shape))):
        return None
    return Rearranged(sources=((0, 0),), is_stacked=False)


def _pad(equation: Equation) -> Rearranged | None:
    config, value = equation.params["padding_config"], equation.invars[1]
    if not config or any(any(dim) for dim in config[1:]) or is_var(value) or value.val != 0:
        return None
    below, above, between = config[0]
    if between or below < 0 or above < 0:
        return None
    layers = tuple((0, layer) for layer in range(equation.invars[0].aval.shape[0]))
    return Rearranged(sources=((None,) * below + layers + (None,) * above))


_RULES = {"slice": _slice, "squeeze": _squeeze, "broadcast_in_dim": _expand, "pad": _pad}
