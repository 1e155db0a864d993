"""The activations of a segment that wait for its backward, and the equations that recomputation runs again.

    none         all values of the forward that the backward uses
    selective    what enters the segment, and the results of products without batch dims (those with weights); the rest
                 is computed again from them, as under `jax.checkpoint_policies.dots_with_no_batch_dims_saveable`
    full         what enters the segment

A copy of a value is the value. Values that depend on state alone are no activations: they are there once for all
microbatches. What depends on no input, such as a mask of iotas, is made where it is needed.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from jaxquard.planner.prices.step_parts import StepPart
from jaxquard.planner.record.plan import Recompute
from jaxquard.pricing.roofline.prepare import NO_VALUE, PreparedJaxpr

_COPIES = frozenset("copy copy_p name optimization_barrier sharding_constraint stop_gradient".split())


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptValues:
    """The values that a segment keeps for its backward, and what it computes again.

    Attributes:
        kept: the numbers of the values.
        recomputed: the positions of the equations that run again.
    """

    kept: tuple[int, ...] = field(repr=False)
    recomputed: frozenset[int] = field(default=frozenset(), repr=False)


class ForwardValues:
    """The values of a segment's forward, for all kinds of recomputation.

    Args:
        data: the numbers of the program's inputs that come from the data or from segments before.
        entering: of those, the ones that come from segments before.
    """

    def __init__(
        self, prepared: PreparedJaxpr, parts: Sequence[StepPart], *, data: Collection[int], entering: Collection[int]
    ) -> None:
        self._prepared = prepared
        self._parts = parts
        self._entering = set(entering)
        self._made_by = {
            number: position for position, equation in enumerate(prepared.equations) for number in equation.outputs
        }
        self._from_data = self._depend_on(data)
        self._used = self._find_used()

    def keep(self, recompute: Recompute) -> KeptValues:
        """Returns what is kept, and what is computed again."""
        if recompute is Recompute.NONE:
            return KeptValues(kept=tuple(number for number in self._used if self._is_kept(number)))
        saved = set(self._entering)
        if recompute is Recompute.SELECTIVE:
            saved |= {self.original(number) for number in self._product_results()}
        recomputed: set[int] = set()
        kept: dict[int, None] = {}
        waiting = list(self._used)
        while waiting:
            number = self.original(waiting.pop())
            if number in saved:
                kept[number] = None
                continue
            position = self._made_by.get(number)
            if position is None or position in recomputed or self._parts[position] is not StepPart.FORWARD:
                continue
            recomputed.add(position)
            waiting.extend(found for found in self._prepared.equations[position].inputs if found != NO_VALUE)
        return KeptValues(
            kept=tuple(number for number in kept if self._is_kept(number)), recomputed=frozenset(recomputed)
        )

    def original(self, number: int) -> int:
        """Returns the value that a copy is a copy of."""
        while number in self._made_by:
            equation = self._prepared.equations[self._made_by[number]]
            if equation.name not in _COPIES or not equation.inputs or equation.inputs[0] == NO_VALUE:
                break
            place = equation.outputs.index(number) if equation.follows_inputs else 0
            number = equation.inputs[place]
        return number

    def _is_kept(self, number: int) -> bool:
        return number in self._entering or (number in self._from_data and number in self._made_by)

    def _product_results(self) -> list[int]:
        return [
            number
            for position, equation in enumerate(self._prepared.equations)
            if equation.sizes is not None and not equation.sizes.has_batch_dims
            if self._parts[position] is StepPart.FORWARD
            for number in equation.outputs
        ]

    def _find_used(self) -> tuple[int, ...]:
        """Returns the values of the forward that equations of the backward use, copies as what they copy."""
        found: dict[int, None] = {}
        for part, equation in zip(self._parts, self._prepared.equations, strict=True):
            if not part.is_backward:
                continue
            for number in equation.inputs:
                if number == NO_VALUE:
                    continue
                position = self._made_by.get(number)
                if position is None or self._parts[position] is StepPart.FORWARD:
                    found[self.original(number)] = None
        return tuple(found)

    def _depend_on(self, sources: Collection[int]) -> set[int]:
        found = set(sources)
        for equation in self._prepared.equations:
            if not found.isdisjoint(equation.inputs):
                found.update(equation.outputs)
        return found
