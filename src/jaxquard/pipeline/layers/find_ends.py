"""Finds where layers end in a traced function, and what they pass on there.

Three ways to find a layer, in this order: by the scopes that its framework records for each module (Flax Linen, Haiku,
Keras), by the parameters that it uses (Flax NNX, Equinox, plain pytrees), or by a line of source. A scan over layers
ends at each of its iterations as well: `blocks[3]` is the fourth.
"""

import fnmatch
import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from jaxquard._jax_compat import scan_counts
from jaxquard.errors import MarkError
from jaxquard.ir.jaxpr_tools import Equation, variables
from jaxquard.ir.operations import is_light
from jaxquard.ir.source import source_line
from jaxquard.pipeline.layers.find_parameters import ParameterUses
from jaxquard.pipeline.layers.flat_function import FlatFunction, has_body, nested_equations
from jaxquard.pipeline.layers.layer_path import Components, LayerPath, match, nearest, scopes_of
from jaxquard.pipeline.layers.live_values import LayerEnd, LiveValues

_NAMES = {
    "remat2": "jax.checkpoint",
    "checkpoint": "jax.checkpoint",
    "scan": "lax.scan",
    "while": "lax.while_loop",
    "cond": "lax.cond",
    "custom_vjp_call": "function with its own derivative (jax.custom_vjp)",
    "custom_jvp_call": "function with its own derivative (jax.custom_jvp)",
}
_CHECKPOINTS = ("remat2", "checkpoint")
_CURES = {
    "remat2": "Checkpoint each layer by itself, and name the layer that is checkpointed.",
    "checkpoint": "Checkpoint each layer by itself, and name the layer that is checkpointed.",
    "scan": "A scan can be split between its iterations: name one, as in {path}[0].",
    "while": "Its number of iterations is not known before it runs: use lax.scan.",
}


class EndFinder:
    """Finds the ends of layers in one function.

    Attributes:
        advice: what to do where no layer matches a path; by default the nearest ones are named.
    """

    def __init__(self, function: FlatFunction, *, advice: str = "") -> None:
        self.function = function
        self.advice = advice
        self.live = LiveValues(function)
        self.parameters = ParameterUses(function)

    def find(self, path: LayerPath) -> list[LayerEnd]:
        """Returns the ends of the layers that a path matches, in the order of the code.

        Raises:
            MarkError: if it matches none, or one that cannot end a stage.
        """
        if path.line:
            return self._by_line(path)
        layers = self._by_scope(path.components)
        scans = self._scans(path) if path.iteration and self._are_in_scans(layers) else []
        if scans:
            return self._iterations(path, scans)
        ends: list[LayerEnd] = []
        # JAX traces equal layers once, so that the scopes of the first may stand for others.
        whole = [members for members in layers.values() if all(members.values())]
        if not any(self.parameters.are_shared(path.components, members) for members in whole):
            ends = [end for layer, members in layers.items() for end in self._ends(".".join(layer), members, path)]
        if not ends:
            self._refuse_parts_of_scans(path)
            ends = self.parameters.ends(path.components, self.live)
        if not ends:
            raise MarkError(self._unknown(path))
        return ends

    def _by_scope(self, pattern: Components) -> dict[Components, dict[int, bool]]:
        """Returns for each layer its equations, and for each of these True if the layer has all of it."""
        layers: dict[Components, dict[int, bool]] = {}
        for position, equation in enumerate(self.function.equations):
            own = match(pattern, scopes_of(equation))
            if own is not None:
                layers.setdefault(own, {})[position] = True
                continue
            inside = [(match(pattern, scopes), nested) for scopes, nested in nested_equations(equation)]
            for layer in {layer for layer, _ in inside if layer is not None}:
                others = (nested for found, nested in inside if found != layer)
                layers.setdefault(layer, {})[position] = all(map(is_light, others))
        return layers

    def _are_in_scans(self, layers: dict[Components, dict[int, bool]]) -> bool:
        """Returns True if no layer stands outside of a scan."""
        positions = {position for members in layers.values() for position in members}
        return all(self.function.equations[position].primitive.name == "scan" for position in positions)

    def _ends(self, name: str, members: dict[int, bool], path: LayerPath) -> Iterator[LayerEnd]:
        """Yields an end for each call of a layer: for each run of its equations."""
        for position, is_whole in members.items():
            if not is_whole:
                raise MarkError(self._hidden(path, self.function.equations[position]))
        for _, run in itertools.groupby(enumerate(sorted(members)), key=lambda item: item[1] - item[0]):
            positions = [position for _, position in run]
            values = self.live.outputs_of(positions)
            if values:
                yield LayerEnd(position=positions[-1], iteration=-1, name=name, values=values)

    def _scans(self, path: LayerPath) -> list[int]:
        """Returns the scans that the path without its last component means."""
        base = path.without_last
        if not base:
            return []
        found = {position for members in self._by_scope(base).values() for position in members}
        found = found or self.parameters.consumers(base)
        return [p for p in sorted(found) if self.function.equations[p].primitive.name == "scan"]

    def _iterations(self, path: LayerPath, scans: Sequence[int]) -> list[LayerEnd]:
        if len(scans) > 1:
            where = " and ".join(source_line(self.function.equations[position]) for position in scans)
            raise MarkError(
                f"mark_layers: {path.text!r} may mean an iteration of several scans, at {where}. Name one by its line, "
                f"as in '{source_line(self.function.equations[scans[0]])}[0]'."
            )
        (position,) = scans
        scan = self.function.equations[position]
        length, base = scan.params["length"], path.line or ".".join(path.without_last)
        wanted = [number for number in range(length) if fnmatch.fnmatchcase(str(number), path.iteration)]
        if not wanted:
            raise MarkError(
                f"mark_layers: {path.text!r} is no iteration of the scan at {source_line(scan)}, which has {length}. "
                f"Use {base}[0] to {base}[{length - 1}]."
            )
        final = 0 if scan.params["reverse"] else length - 1
        outputs = self.live.outputs_of([position])
        return [
            LayerEnd(
                position=position,
                iteration=-1 if number == final else number,
                name=f"{base}[{number}]",
                values=outputs if number == final else (),
                rank=abs(number - (length - 1 - final)),
            )
            for number in wanted
        ]

    def _by_line(self, path: LayerPath) -> list[LayerEnd]:
        own = self._at_line(path)
        inside = self._around_line(path) if not any(has_body(self.function.equations[p]) for p in own) else []
        scans = [p for p in (*own, *inside) if self.function.equations[p].primitive.name == "scan"]
        if path.iteration and scans:
            return self._iterations(path, scans)
        ends: list[LayerEnd] = []
        for position in inside:
            equation = self.function.equations[position]
            if equation.primitive.name == "scan" and self._is_over_layers(equation):
                ends.extend(self._iterations(replace(path, components=("*",)), [position]))
            elif equation.primitive.name not in _CHECKPOINTS:
                raise MarkError(self._hidden(path, equation))
            else:
                ends.extend(self._ends(path.line, {position: True}, path))
        ends.extend(self._ends(path.line, dict.fromkeys(own, True), path))
        if not ends:
            raise MarkError(self._unknown_line(path))
        return ends

    def _at_line(self, path: LayerPath) -> list[int]:
        positions = range(len(self.function.equations))
        return [p for p in positions if any(_is_line(path.line, line) for line in self.function.lines(p))]

    def _around_line(self, path: LayerPath) -> list[int]:
        """Returns the equations that have a line inside: in the body of a scan, say."""
        positions = range(len(self.function.equations))
        return [p for p in positions if any(_is_line(path.line, line) for line in self.function.inner_lines(p))]

    def _is_over_layers(self, scan: Equation) -> bool:
        """Returns True if a scan takes its slices of weights; a loop over time takes those of the data."""
        stacks = variables(scan.invars[sum(scan_counts(scan.params)) :])
        return any(self.live.arguments[var] == {self.live.weights_argument} for var in stacks)

    def _refuse_parts_of_scans(self, path: LayerPath) -> None:
        """Refuses `blocks.3.attention` where `blocks` is a scan: stages end between iterations alone."""
        for stop in range(1, len(path.components) - 1):
            if path.components[stop].isdigit():
                base = LayerPath(text=path.text, components=path.components[: stop + 1])
                scans = [] if self._by_scope(base.components) else self._scans(base)
                if scans and not self.parameters.consumers(base.components):
                    raise MarkError(self._hidden(base, self.function.equations[scans[0]], text=path.text))

    def _hidden(self, path: LayerPath, equation: Equation, text: str = "") -> str:
        kind = equation.primitive.name
        cure = _CURES.get(kind, "Name the layer around it, or one before or after it.")
        base = path.without_last if path.iteration else _common_scopes(equation)
        line = source_line(equation)
        return (
            f"mark_layers: {(text or path.text)!r} is a part of the {_NAMES.get(kind, kind)} at {line}, inside of "
            f"which no stage can end. {cure.format(path=path.line or '.'.join(base) or line)}"
        )

    def _unknown(self, path: LayerPath) -> str:
        return f"mark_layers: no layer matches {path.text!r}. {self.advice or _suggest(path.text, self._known())}"

    def _known(self) -> Iterable[Components]:
        """Returns the paths of all modules and parameters."""
        paths = {path[1:] for path in self.function.paths}
        for equation in self.function.equations:
            paths.update([scopes_of(equation), *(scopes for scopes, _ in nested_equations(equation))])
        return {path[:stop] for path in paths for stop in range(1, len(path) + 1)}

    def _unknown_line(self, path: LayerPath) -> str:
        positions = range(len(self.function.equations))
        lines = {line for p in positions for line in (*self.function.lines(p), *self.function.inner_lines(p))}
        known = {f"{os.path.basename(file)}:{number}" for file, number in (line.rsplit(":", 1) for line in lines)}
        file, number = path.line.rsplit(":", 1)
        same = sorted(
            (line for line in known if line.startswith(os.path.basename(file) + ":")),
            key=lambda line: abs(int(line.rsplit(":", 1)[1]) - int(number)),
        )
        nearby = ", ".join(same[:3]) or "none in that file"
        return f"mark_layers: nothing that is used later is computed at {path.line!r}. The nearest lines: {nearby}."


def _common_scopes(equation: Equation) -> Components:
    """Returns the module that all equations inside one stand in."""
    columns = zip(*(scopes for scopes, _ in nested_equations(equation)), strict=False)
    return tuple(column[0] for column in itertools.takewhile(lambda column: len(set(column)) == 1, columns))


def _is_line(wanted: str, line: str) -> bool:
    return line == os.path.abspath(wanted) or line.endswith(os.sep + wanted)


def _suggest(text: str, known: Iterable[Components]) -> str:
    found = nearest(text, known)
    if not found:
        return (
            "The function has no named modules, and no parameters in its arguments: name a line, as in 'model.py:41'."
        )
    return f"Nearest: {', '.join(found)}."
