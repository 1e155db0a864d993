"""The operations of a step, one short digest each: enough to say which one is the first that differs."""

import hashlib

from jaxquard.intraop.source_lines import source_line
from jaxquard.ir.jaxpr_tools import Jaxpr
from jaxquard.pricing.fingerprint import operation_texts

# Two operations that differ have the same digest once in 65536 times; another one is then named.
_DIGITS = 4


def outline(jaxpr: Jaxpr) -> str:
    """The digests of all operations, one after the other."""
    return "".join(hashlib.sha256(text.encode()).hexdigest()[:_DIGITS] for text in operation_texts(jaxpr))


def first_difference(planned: str, jaxpr: Jaxpr) -> str:
    """Where a step leaves the one of an outline, in a sentence without its full stop; nothing if it does not."""
    before, now = _digests(planned), _digests(outline(jaxpr))
    num_same = next(
        (at for at, (old, new) in enumerate(zip(before, now, strict=False)) if old != new), min(len(before), len(now))
    )
    counts = f"it had {len(before)} operations and has {len(now)}" if len(before) != len(now) else ""
    if num_same == len(now):
        return counts
    equation = jaxpr.eqns[num_same]
    first = f"the first that differs is {equation.primitive.name} at {source_line(equation)}"
    return f"{counts}; {first}" if counts else f"of its operations {first}"


def _digests(text: str) -> list[str]:
    return [text[at : at + _DIGITS] for at in range(0, len(text), _DIGITS)]
