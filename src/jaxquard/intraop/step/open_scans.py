"""Opens scans over layers: one copy of the body for each layer, and stacked leaves in parts.

    c, y = scan[length=2] c0 w                   c1, y0 = body c0 w0 ; c, y1 = body c1 w1
    d, g = scan[length=2, reverse=True] d0 y w   d1, g1 = backward d0 y1 w1 ; d, g0 = backward d1 y0 w0
    v = sub w g                              =>  v0 = sub w0 g0 ; v1 = sub w1 g1

Each layer is then as if it had been written by itself: its backward uses the values of its own forward, it has its own
weights and updates them. The inputs and outputs of the step that are stacks come in parts. An operation without a rule
for one layer is done on the joined stack.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxquard.intraop.step.find_stacks import Scan, Stacks, find_stacks, is_copy, stacks_met
from jaxquard.intraop.step.layer_rules import LayerForm, Rearranged, layer_form, num_layers, rearranged
from jaxquard.intraop.step.parts import LeafPart, pair_parts
from jaxquard.intraop.step.stack_values import FromNothing, StackValues, count_layers, layer_type, numbers_of_layers
from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, Var, is_var, make_jaxpr, new_var, prune, substitute, variables
from jaxquard.ir.source import source_inside


@dataclass(frozen=True, slots=True, kw_only=True)
class FlatStep:
    """A flat step.

    Attributes:
        jaxpr: its inputs are arguments or parts of them, then constants.
        inputs: the argument, or part of one, that each of the first inputs is.
        outputs: the result, or part of one, that each output is.
    """

    jaxpr: Jaxpr
    constants: tuple[Any, ...]
    inputs: tuple[LeafPart, ...]
    outputs: tuple[LeafPart, ...]


def open_scans(step: FlatStep, *, results: Sequence[int | None]) -> FlatStep:
    """Opens the scans over layers of a step whose calls are open, and the scans over layers in their bodies.

    Args:
        results: for each argument, the result that replaces it in the next step; None for data.
    """
    while True:
        jaxpr, num_args = step.jaxpr, len(step.inputs)
        paired = pair_parts(step.inputs, step.outputs, dict(enumerate(results)))
        state = [
            (var, jaxpr.outvars[result])
            for var, result in zip(jaxpr.invars, paired, strict=False)
            if result is not None
        ]
        data = {var for var, result in zip(jaxpr.invars, paired, strict=False) if result is None}
        parts = {var for var, part in zip(jaxpr.invars, step.inputs, strict=False) if part.index}
        stacks = find_stacks(jaxpr, num_args=num_args, pairs=state, data=data, parts=parts)
        if not stacks.values:
            return step
        step = _Writer(step, stacks).write()


class _Writer(StackValues):
    """Writes the opened step."""

    def __init__(self, step: FlatStep, stacks: Stacks):
        super().__init__()
        self.step = step
        self.stacks = stacks
        self.constants: dict[Var, Any] = {}
        self.from_nothing = FromNothing(step.jaxpr)
        # For each layer of a scan and of its backward, what it has of its own of the values that come from nothing.
        self.copies: dict[tuple[int, int], dict[Var, Any]] = {}
        self.first_scans: dict[Var, Equation] = {}

    def write(self) -> FlatStep:
        step, jaxpr = self.step, self.step.jaxpr
        inputs: list[Var] = []
        input_parts: list[LeafPart] = []
        for var, part in zip(jaxpr.invars, step.inputs, strict=False):
            made, parts = self._input(var, part)
            inputs.extend(made)
            input_parts.extend(parts)
        constants = jaxpr.invars[len(step.inputs) :]
        self.whole.update((var, var) for var in constants)
        for place, equation in enumerate(jaxpr.eqns):
            self._write(place, equation)
        outputs: list[Any] = []
        out_parts: list[LeafPart] = []
        for atom, part in zip(jaxpr.outvars, step.outputs, strict=True):
            made, parts = self._output(atom, part)
            outputs.extend(made)
            out_parts.extend(parts)
        opened = make_jaxpr([*inputs, *constants, *self.constants], self.equations, outputs)
        return FlatStep(
            jaxpr=prune(opened),
            constants=(*step.constants, *self.constants.values()),
            inputs=tuple(input_parts),
            outputs=tuple(out_parts),
        )

    def _input(self, var: Var, part: LeafPart) -> tuple[list[Var], list[LeafPart]]:
        if var not in self.stacks.values:
            self.whole[var] = var
            return [var], [part]
        self.layers[var] = [new_var(layer_type(var)) for _ in range(var.aval.shape[0])]
        return self.layers[var], _parts(part, len(self.layers[var]))

    def _output(self, atom: Any, part: LeafPart) -> tuple[list[Any], list[LeafPart]]:
        if not is_var(atom) or atom not in self.stacks.values:
            return [self.joined(atom)], [part]
        layers = self.in_layers(atom)
        return layers, _parts(part, len(layers))

    def _write(self, place: int, equation: Equation) -> None:
        scan = self.stacks.scans.get(place)
        stacks = self.stacks.values
        if scan is not None:
            self._write_scan(scan)
        elif stacks.isdisjoint((*variables(equation.invars), *equation.outvars)):
            self.append(equation, [self.joined(atom) for atom in equation.invars])
        elif is_copy(equation):
            self._write_copy(equation)
        elif equation.primitive.name == "iota":
            self._write_iota(equation)
        else:
            form, moved = layer_form(equation), rearranged(equation)
            if stacks.isdisjoint(stacks_met(equation)):
                self.append(equation, [self.joined(atom, equation) for atom in equation.invars])
            elif form is not None:
                self._write_layers(equation, form)
            elif moved is not None:
                self._rearrange(equation, moved)

    def _write_scan(self, scan: Scan) -> None:
        equation = scan.equation
        more = [new_var(jax_type) for jax_type in scan.body.invars[len(equation.invars) :]]
        self.constants.update(zip(more, scan.more, strict=True))
        carries = [
            self.joined(atom, equation)
            for atom in equation.invars[scan.num_constants : scan.num_constants + scan.num_carries]
        ]
        scanned = [self.in_layers(atom, equation) for atom in scan.scanned]
        stacked_up: list[list[Any]] = [[None] * scan.length for _ in scan.stacked_up]
        first = next((self.first_scans[var] for var in variables(scan.scanned) if var in self.first_scans), equation)
        self.first_scans.update(dict.fromkeys(scan.stacked_up, first))
        body = [_named(inner, equation) for inner in scan.body.eqns]
        for layer in scan.order:
            constants = [self._constant(atom, layer, first) for atom in equation.invars[: scan.num_constants]]
            inputs = [*constants, *carries, *(layers[layer] for layers in scanned), *more]
            renamed = dict(zip(scan.body.invars, inputs, strict=True))
            self._copy(body, renamed)
            results = [substitute(atom, renamed) for atom in scan.body.outvars]
            carries = results[: scan.num_carries]
            for layers, result in zip(stacked_up, results[scan.num_carries :], strict=True):
                layers[layer] = result
        self.whole.update(zip(equation.outvars, carries, strict=False))
        self.layers.update(zip(scan.stacked_up, stacked_up, strict=True))

    def _copy(self, equations: Sequence[Equation], renamed: dict[Var, Any]) -> None:
        """Appends copies of equations, and adds their results to `renamed`."""
        for equation in equations:
            inputs = [substitute(atom, renamed) for atom in equation.invars]
            counted = count_layers(equation, inputs)
            if counted is not None:
                renamed[equation.outvars[0]] = counted
                continue
            outputs = [new_var(var) for var in equation.outvars]
            renamed.update(zip(equation.outvars, outputs, strict=True))
            self.equations.append(equation.replace(invars=inputs, outvars=outputs))

    def _constant(self, atom: Any, layer: int, first: Equation) -> Any:
        """Returns a constant of a scan for one layer: a copy of its own if it comes from no input."""
        needed = self.from_nothing.equations(atom) if is_var(atom) else None
        if not needed:
            return self.joined(atom)
        renamed = self.copies.setdefault((id(first), layer), {})
        self._copy([equation for equation in needed if equation.outvars[0] not in renamed], renamed)
        return renamed[atom]

    def _write_copy(self, equation: Equation) -> None:
        """Writes one barrier for all layers of all its inputs."""
        inputs: list[Any] = []
        outputs: list[Var] = []
        for atom, out in zip(equation.invars, equation.outvars, strict=True):
            is_stack = out in self.stacks.values
            atoms = self.in_layers(atom, equation) if is_stack else [self.joined(atom, equation)]
            made = [new_var(layer_type(out) if is_stack else out) for _ in atoms]
            inputs.extend(atoms)
            outputs.extend(made)
            if is_stack:
                self.layers[out] = made
            else:
                self.whole[out] = made[0]
        self.equations.append(equation.replace(invars=inputs, outvars=outputs))

    def _write_iota(self, equation: Equation) -> None:
        (var,) = equation.outvars
        if len(var.aval.shape) > 1:
            self.append(equation, [])
            return
        self.layers[var] = numbers_of_layers(var.aval.shape[0], layer_type(var))

    def _rearrange(self, equation: Equation, moved: Rearranged) -> None:
        layers: list[Any] = []
        (var,) = equation.outvars
        for source in moved.sources:
            if source is None:
                layers.append(self.zeros(layer_type(var)))
            elif moved.is_stacked:
                layers.append(self.in_layers(equation.invars[source[0]], equation)[source[1]])
            else:
                layers.append(self.joined(equation.invars[source[0]], equation))
        if moved.makes_stack:
            self.layers[var] = layers
        else:
            self.whole[var] = layers[0]

    def _write_layers(self, equation: Equation, form: LayerForm) -> None:
        count = num_layers(equation, form)
        inputs: list[list[Any]] = []
        for atom, is_stacked in zip(equation.invars, form.stacked, strict=True):
            layers = self.in_layers(atom, equation) if is_stacked else [self.joined(atom, equation)]
            inputs.append(layers if len(layers) == count else layers * count)
        made: list[list[Any]] = [[] for _ in equation.outvars]
        for operands in zip(*inputs, strict=True):
            for layers, result in zip(made, self._write_layer(equation, form, operands), strict=True):
                layers.append(result)
        if form.combine is None:
            self.layers.update(zip(equation.outvars, made, strict=True))
        else:
            self.whole[equation.outvars[0]] = self.combine(form.combine, made[0], equation)

    def _write_layer(self, equation: Equation, form: LayerForm, operands: Sequence[Any]) -> list[Any]:
        if form.params is None:
            return [operands[0]]
        if equation.primitive.name == "add_any" and any(self.is_zero(atom) for atom in operands):
            return [operands[1] if self.is_zero(operands[0]) else operands[0]]
        counted = count_layers(equation, operands)
        if counted is not None:
            return [counted]
        is_stack = form.combine is None
        outputs = [new_var(layer_type(var) if is_stack else var) for var in equation.outvars]
        self.equations.append(equation.replace(invars=list(operands), outvars=outputs, params=form.params))
        return outputs


def _named(inner: Equation, scan: Equation) -> Equation:
    """Returns an equation of a body with the name stack of the scan before its own, and a line of the user's."""
    return inner.replace(source_info=source_inside(scan, inner))


def _parts(part: LeafPart, count: int) -> list[LeafPart]:
    return [LeafPart(leaf=part.leaf, index=(*part.index, layer)) for layer in range(count)]
