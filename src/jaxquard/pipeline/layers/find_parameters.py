"""Finds layers by the parameters that they use, where a framework records no modules.

A layer ends with the last equation that uses its parameters, and with the light operations after it (a residual sum,
an activation, a cast) as far as they make what is passed on smaller or leave it as large.
"""

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Any

from jaxquard.errors import MarkError
from jaxquard.ir.jaxpr_tools import Equation, Var, size_bytes, variables
from jaxquard.ir.operations import ELEMENTWISE, REARRANGING
from jaxquard.ir.source import source_line
from jaxquard.pipeline.layers.flat_function import FlatFunction, has_body
from jaxquard.pipeline.layers.layer_path import Components, match
from jaxquard.pipeline.layers.live_values import LayerEnd, LiveValues

_LIGHT = ELEMENTWISE | REARRANGING | {"custom_jvp_call"}


class ParameterUses:
    """Knows which equations of a function use which leaves of its arguments, casts and transposes seen through."""

    def __init__(self, function: FlatFunction) -> None:
        self.function = function
        self.leaf_of: dict[Var, int] = {var: leaf for leaf, var in enumerate(function.inputs)}
        self.uses: dict[int, list[int]] = defaultdict(list)
        for position, equation in enumerate(function.equations):
            leaves = {self.leaf_of.get(var, -1) for var in variables(equation.invars)}
            if len(leaves) == 1 and -1 not in leaves and equation.primitive.name in _LIGHT:
                self.leaf_of.update(dict.fromkeys(equation.outvars, *leaves))
                continue
            for leaf in leaves - {-1}:
                self.uses[leaf].append(position)

    def consumers(self, pattern: Components) -> set[int]:
        """Returns the equations that use the parameters under a path."""
        return {
            position for leaves in self._layers(pattern).values() for leaf in leaves for position in self.uses[leaf]
        }

    def are_shared(self, pattern: Components, positions: Collection[int]) -> bool:
        """Returns True if some equations use parameters of a layer under a path, and of its siblings."""
        layers = self._layers(pattern)
        used = [
            self.function.paths[leaf][1:] for leaf, uses in self.uses.items() if not set(uses).isdisjoint(positions)
        ]
        return any(_is_sibling(path, layer) and path[: len(layer)] not in layers for layer in layers for path in used)

    def ends(self, pattern: Components, live: LiveValues) -> list[LayerEnd]:
        """Returns the ends of the layers under a path: one for each call of each."""
        return [
            end
            for layer, leaves in self._layers(pattern).items()
            for positions in self._calls(leaves)
            if (end := self._end(layer, leaves, positions, live)) is not None
        ]

    def _layers(self, pattern: Components) -> dict[Components, list[int]]:
        """Returns for each layer the leaves of its parameters."""
        layers: dict[Components, list[int]] = defaultdict(list)
        for leaf, path in enumerate(self.function.paths):
            found = match(pattern, path[1:])
            if found is not None:
                layers[found].append(leaf)
        return layers

    def _calls(self, leaves: Collection[int]) -> Iterator[list[int]]:
        """Yields the equations of each call of a layer, which uses every leaf of the layer once."""
        uses = [self.uses[leaf] for leaf in leaves if self.uses[leaf]]
        counts = {len(positions) for positions in uses}
        if not uses:
            return
        if len(counts) == 1:
            calls = [sorted(set(positions)) for positions in zip(*uses, strict=True)]
            if all(before[-1] < after[0] for before, after in itertools.pairwise(calls)):
                yield from calls
                return
        yield sorted({position for positions in uses for position in positions})

    def _end(
        self, layer: Components, leaves: Collection[int], positions: list[int], live: LiveValues
    ) -> LayerEnd | None:
        for position in positions:
            self._refuse_shared_bodies(layer, self.function.equations[position])
        made = self._made_by(set(positions))
        best: tuple[int, tuple[Var, ...]] | None = None
        weights = self.function.paths[next(iter(leaves))][0]
        for position in self._candidates(positions[-1], made):
            values = live.crossing([var for var in made if made[var] <= position], position, weights)
            if values and (best is None or _num_bytes(values) <= _num_bytes(best[1])):
                best = position, values
        if best is None:
            return None
        return LayerEnd(position=best[0], iteration=-1, name=".".join(layer), values=best[1])

    def _made_by(self, positions: Collection[int]) -> dict[Var, int]:
        """Returns what depends on some equations, and where it is made."""
        made: dict[Var, int] = {}
        for position, equation in enumerate(self.function.equations):
            if position in positions or any(var in made for var in variables(equation.invars)):
                made.update(dict.fromkeys(equation.outvars, position))
        return made

    def _candidates(self, last: int, made: dict[Var, int]) -> Iterator[int]:
        """Yields the positions where the layer may end: from its last product to the next costly operation."""
        yield last
        for position in range(last + 1, len(self.function.equations)):
            equation = self.function.equations[position]
            operands = variables(equation.invars)
            if not any(var in made for var in operands):
                continue
            leaves = {self.leaf_of[var] for var in operands if var in self.leaf_of}
            if equation.primitive.name not in _LIGHT or any(self.uses[leaf][:1] == [position] for leaf in leaves):
                return
            yield position

    def _refuse_shared_bodies(self, layer: Components, equation: Equation) -> None:
        """Refuses a layer that shares a checkpoint, or a loop, with others of its kind."""
        if not has_body(equation):
            return
        for var in variables(equation.invars):
            path = self.function.paths[self.leaf_of[var]][1:] if var in self.leaf_of else ()
            if _is_sibling(path, layer):
                kind = {"remat2": "jax.checkpoint", "checkpoint": "jax.checkpoint"}.get(
                    equation.primitive.name, equation.primitive.name
                )
                raise MarkError(
                    f"mark_layers: {'.'.join(layer)!r} shares the {kind} at {source_line(equation)} with "
                    f"{'.'.join(path[: len(layer)])!r}, so no stage can end between them. Give each layer its own."
                )


def _is_sibling(path: Components, layer: Components) -> bool:
    """Returns True for the path of a parameter of another layer beside a layer."""
    return len(path) > len(layer) and path[: len(layer) - 1] == layer[:-1] and path[: len(layer)] != layer


def _num_bytes(values: Collection[Any]) -> int:
    return sum(size_bytes(var.aval) for var in values)
