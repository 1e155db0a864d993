"""The transfers that a compiled program hides behind products (design decision 10).

The compiled text alone says what is hidden; what could hide follows from the algorithm (`hideable`). One transfer is
one collective of the algorithm: one that is made of several steps, as the sums of `ring_streams` are, carries the name
of a scope (`transfer3`) in its steps, and hides if all of them do. In a loop, it counts once an iteration.
"""

import re
from collections import defaultdict
from dataclasses import dataclass

from jaxquard.gemm.overlap.transfers import ScheduledCollective, scheduled_collectives
from jaxquard.hlo import parse_module

_SCOPE = re.compile(r"\btransfer\d+\b")
_BY_SHIFTS = frozenset({"wang", "summa", "cannon", "1d_tp", "fsdp"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """The number of transfers of one product that could hide, and of those that do."""

    hideable: int
    hidden: int

    def __str__(self) -> str:
        return f"{self.hidden} of {self.hideable}"


def count_hidden(text: str, *, algorithm: str) -> int:
    """Counts the hidden transfers of a compiled program of one product, given its text.

    Of an algorithm by shifts, shifts count; of the others, whole collectives: what the compiler adds on its own, such
    as the permutes with which it aligns a scatter, does not.
    """
    transfers = scheduled_collectives(parse_module(text))
    steps: dict[str, list[ScheduledCollective]] = defaultdict(list)
    for transfer in transfers:
        scope = _SCOPE.search(transfer.source)
        if scope or (transfer.kind == "collective-permute") == (algorithm in _BY_SHIFTS):
            steps[scope[0] if scope else transfer.name].append(transfer)
    return sum(steps_of_one[0].times for steps_of_one in steps.values() if all(map(_is_hidden, steps_of_one)))


def _is_hidden(step: ScheduledCollective) -> bool:
    return step.is_hidden
