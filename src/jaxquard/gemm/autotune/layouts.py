"""The layouts of a block's activations, layer after layer: the exact form of the autotuner's first phase.

Activations are sharded rows over rows (plain) or the other way round (turned). A layer has six forms: three stationary
matrices, each plain or transposed (`dataflows.py`), and each form takes one layout and gives one:

    Y, X              plain -> plain       transposed   turned -> turned
    W                 turned -> plain      transposed   plain -> turned

Between two layers activations may also be transposed, at a price, forward and backward. A residual sum needs the layout
with which its block began. Given the price of each form on a mesh, the best sequence is found by dynamic programming.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from jaxquard.gemm.problem import Stationary

_Choice = TypeVar("_Choice")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerLayout:
    """One way to lay a layer out."""

    stationary: Stationary
    is_transposed: bool

    @property
    def takes_turned(self) -> bool:
        return self.is_transposed != (self.stationary is Stationary.W)

    @property
    def gives_turned(self) -> bool:
        return self.is_transposed


LAYER_LAYOUTS = tuple(
    LayerLayout(stationary=stationary, is_transposed=is_transposed)
    for stationary in Stationary
    for is_transposed in (False, True)
)


def forms_of(algorithms: Sequence[str], *, stationary: Stationary | None = None) -> tuple[LayerLayout, ...]:
    """Returns the forms that layers may have: the 1D algorithms are defined by what moves (section 4.3).

    Args:
        stationary: the only matrix that layers keep, if it is given.
    """
    forms = [form for form in LAYER_LAYOUTS if stationary in (None, form.stationary)]
    if "1d_tp" in algorithms:
        # Transposed, X and Y stay and W moves, which is fully sharded data parallelism.
        forms = [form for form in forms if form.stationary is Stationary.W or not form.is_transposed]
    if "fsdp" in algorithms:
        forms = [form for form in forms if form.stationary is not Stationary.W and not form.is_transposed]
    return tuple(forms)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutStep(Generic[_Choice]):
    """A layer in each of its forms, on one mesh.

    Attributes:
        choices: each form with its best choice and the seconds of that; a form without one cannot be had.
        transpose_s: the seconds to transpose its input and, backward, the gradient of it.
        output_transpose_s: the same for its output.
    """

    choices: Mapping[LayerLayout, tuple[float, _Choice]]
    transpose_s: float
    output_transpose_s: float
    ends_residual: bool


def best_layouts(steps: Sequence[LayoutStep[_Choice]]) -> tuple[float, tuple[tuple[LayerLayout, _Choice], ...]] | None:
    """Returns the seconds of the fastest sequence of forms, and the sequence; None if there is none."""
    ends = (_best_from(steps, starts_turned) for starts_turned in (False, True))
    return min((end for end in ends if end is not None), key=lambda end: end[0], default=None)


_Path = tuple[float, tuple[tuple[LayerLayout, _Choice], ...]]


def _best_from(steps: Sequence[LayoutStep[_Choice]], starts_turned: bool) -> _Path[_Choice] | None:
    """Returns the fastest sequence that takes a block's input in one layout and gives its output in the same."""
    reached: dict[bool, _Path[_Choice]] = {starts_turned: (0.0, ())}
    for number, step in enumerate(steps):
        following: dict[bool, _Path[_Choice]] = {}
        for form, (time_s, choice) in step.choices.items():
            for is_turned, (before_s, path) in reached.items():
                after_s = before_s + time_s + (step.transpose_s if is_turned != form.takes_turned else 0.0)
                is_turned_now = form.gives_turned
                if step.ends_residual or number == len(steps) - 1:
                    after_s += step.output_transpose_s if is_turned_now != starts_turned else 0.0
                    is_turned_now = starts_turned
                if after_s < following.get(is_turned_now, (math.inf,))[0]:
                    following[is_turned_now] = (after_s, (*path, (form, choice)))
        reached = following
    return reached.get(starts_turned)
