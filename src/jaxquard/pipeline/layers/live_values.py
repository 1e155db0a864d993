"""The values that a layer passes on: those that are used after it, but for weights and what every stage computes."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from jaxquard.ir.jaxpr_tools import Var, make_jaxpr, size_bytes, variables
from jaxquard.pipeline.layers.flat_function import FlatFunction
from jaxquard.pipeline.passes.assign_stages import find_recomputed

# The name of what a function closes over, among the names of its arguments.
_CLOSURE = "closure"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerEnd:
    """The end of a layer.

    Attributes:
        position: of the last equation of the layer.
        iteration: of the scan at that position, after which the layer ends; -1 where the equation is its end.
        name: of the layer.
        values: what it passes on; of an iteration, all that a scan carries.
        rank: of an iteration among those of its scan, as they run.
    """

    position: int
    iteration: int
    name: str
    values: tuple[Var, ...] = ()
    rank: int = 0

    @property
    def order(self) -> tuple[int, int]:
        """Grows as the function runs."""
        return self.position, self.rank


class LiveValues:
    """Knows for each value of a function where it is used last, and which arguments it depends on."""

    def __init__(self, function: FlatFunction) -> None:
        self.function = function
        equations = function.equations
        self.last_use = {var: p for p, equation in enumerate(equations) for var in variables(equation.invars)}
        self.last_use.update(dict.fromkeys(variables(function.outputs), len(equations)))
        body = make_jaxpr([*function.constants, *function.inputs], equations, function.outputs)
        self.recomputed = {var for position in find_recomputed(body) for var in equations[position].outvars}
        self.arguments: dict[Var, frozenset[str]] = {var: frozenset([_CLOSURE]) for var in function.constants}
        for var, path in zip(function.inputs, function.paths, strict=True):
            self.arguments[var] = frozenset(path[:1])
        self.leaves = frozenset(self.arguments)
        self.num_arguments = len({name for names in self.arguments.values() for name in names})
        for equation in equations:
            needed = frozenset[str]().union(*(self.arguments.get(var, ()) for var in variables(equation.invars)))
            self.arguments.update(dict.fromkeys(equation.outvars, needed))

    @property
    def weights_argument(self) -> str:
        """The argument with the most arrays; of several, that with the most bytes."""
        sizes: dict[str, list[int]] = {}
        for var in self.leaves:
            for name in self.arguments[var]:
                sizes.setdefault(name, []).append(size_bytes(var.aval))
        return max(sizes, key=lambda name: (len(sizes[name]), sum(sizes[name])), default="")

    def outputs_of(self, positions: Sequence[int]) -> tuple[Var, ...]:
        """Returns the activations of some equations that are used after the last of them."""
        made = [var for position in positions for var in self.function.equations[position].outvars]
        return self.crossing(made, positions[-1], self._weights_of(positions))

    def crossing(self, made: Collection[Var], position: int, weights: str = "") -> tuple[Var, ...]:
        """Returns those of some values that are used after a position, but for weights and recomputed values.

        Args:
            made: the values.
            position: of the equation that they cross.
            weights: the argument that has the weights; "" if it is not known.
        """
        only_weights = frozenset([weights] if weights and self.num_arguments > 1 else [])
        found = [
            var for var in made if self.last_use.get(var, -1) > position and not self.arguments[var] <= only_weights
        ]
        return tuple(var for var in found if var not in self.recomputed) or tuple(found)

    def _weights_of(self, positions: Sequence[int]) -> str:
        """Returns the argument of which some equations use most leaves."""
        used = (var for position in positions for var in variables(self.function.equations[position].invars))
        counts = Counter(name for var in self.leaves.intersection(used) for name in self.arguments[var])
        return counts.most_common(1)[0][0] if counts else ""
