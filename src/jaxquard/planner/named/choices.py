"""The choices of a strategy by the words in which a user fixes or forbids them.

A wish is a word and a value, or several: `{"stages": 8}`, `{"recompute": ["none", "selective"]}`. Layers and paths of
parameters cannot be wished for here: all layers of a model by name are alike.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxquard.errors import PlanError
from jaxquard.pricing.model.parallelism import Parallelism

STORAGES = ("as used", "zero 1", "zero 2", "zero 3")
# The schedules that have a closed form, by their names in `schedules.SCHEDULES`.
SCHEDULE_NAMES = {
    "none": "none",
    "gpipe": "gpipe",
    "1f1b": "1f1b",
    "interleaved": "interleaved",
    "zero-bubble": "zero-bubble-h1",
}


def actor_axes(parallelism: Parallelism) -> dict[str, int]:
    """Returns the axes of an actor's mesh, the outer one first; those of one device are left out, if not all are."""
    sizes = {"data": parallelism.data, "context": parallelism.context, "tensor": parallelism.tensor}
    return {name: size for name, size in sizes.items() if size > 1} or {"data": 1}


def mesh_text(parallelism: Parallelism) -> str:
    """Returns the degrees of a strategy in a few words: "tensor 8, data 128, pipeline 16 x 4"."""
    par = parallelism
    degrees = {"tensor": par.tensor, "context": par.context, "expert": par.expert, "data": par.data}
    words = [f"{name} {size}" for name, size in degrees.items() if size > 1]
    if par.pipeline > 1:
        words.append(f"pipeline {par.pipeline}" + (f" x {par.num_chunks}" if par.num_chunks > 1 else ""))
    return ", ".join(words) or "one device"


CHOICES: dict[str, Callable[[Parallelism], Any]] = {
    "schedule": lambda par: SCHEDULE_NAMES[par.schedule],
    "stages": lambda par: par.num_stages,
    "actors": lambda par: par.pipeline,
    "chunks": lambda par: par.num_chunks,
    "microbatches": lambda par: par.num_microbatches,
    "microbatch_size": lambda par: par.microbatch * par.data,
    "microbatch": lambda par: par.microbatch,
    "recompute": lambda par: par.recompute,
    "storage": lambda par: STORAGES[par.zero],
    "tensor": lambda par: par.tensor,
    "sequence": lambda par: par.sequence,
    "context": lambda par: par.context,
    "data": lambda par: par.data,
    "expert": lambda par: par.expert,
    "mesh": actor_axes,
}
_SYNONYMS = {"pipeline": "actors", "zero": "storage", "num_stages": "stages", "num_microbatches": "microbatches"}
_WORDS = {"schedule": tuple(SCHEDULE_NAMES.values()), "recompute": ("none", "selective", "full"), "storage": STORAGES}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceWish:
    """A choice that a strategy must have, or must not have.

    Attributes:
        word: the choice, of `CHOICES`.
        values: one of which it must be; none of which, if it is forbidden.
    """

    word: str
    values: tuple[Any, ...]
    is_forbidden: bool = False
    _read: Callable[[Parallelism], Any] = field(repr=False)

    def __str__(self) -> str:
        """Returns the wish as the user wrote it."""
        values = " or ".join(str(value) for value in self.values)
        return f"{'forbid' if self.is_forbidden else 'fix'} {self.word}={values}"

    def allows(self, parallelism: Parallelism) -> bool:
        """Returns true if a strategy meets it."""
        return (self._read(parallelism) in self.values) != self.is_forbidden


def read_wishes(fix: Mapping[str, Any] | None, forbid: Mapping[str, Any] | None) -> tuple[ChoiceWish, ...]:
    """Returns the wishes of a user.

    Raises:
        PlanError: if a word or a value is not known; the message has those that are.
    """
    return tuple(
        _read_wish(word, value, is_forbidden)
        for wishes, is_forbidden in ((fix, False), (forbid, True))
        for word, value in (wishes or {}).items()
    )


def _read_wish(word: str, value: Any, is_forbidden: bool) -> ChoiceWish:
    name = _SYNONYMS.get(word, word)
    if name not in CHOICES:
        raise PlanError(
            f"{word!r} is no choice of a model by name. Fix or forbid one of {', '.join(CHOICES)}; layers and "
            "parameters are for steps that are traced."
        )
    several = value if isinstance(value, (list, tuple, set, frozenset)) else (value,)
    values = tuple(_read_value(name, item) for item in several)
    return ChoiceWish(word=name, values=values, is_forbidden=is_forbidden, _read=CHOICES[name])


def _read_value(word: str, value: Any) -> Any:
    if word == "mesh":
        if not isinstance(value, Mapping) or not set(value) <= {"data", "context", "tensor"}:
            raise PlanError(f"mesh is {value!r}; give sizes of data, context and tensor, such as {{'tensor': 8}}.")
        return {name: int(size) for name, size in value.items() if int(size) > 1} or {"data": 1}
    if word == "sequence":
        return value if isinstance(value, bool) else str(value).lower() in ("true", "yes", "1")
    if word in _WORDS:
        text = str(value).lower().replace("_", " ")
        if word == "storage":
            text = {"0": STORAGES[0], "fsdp": STORAGES[3], "replicated": STORAGES[0]}.get(text, text)
            text = f"zero {text.removeprefix('zero').strip(' -')}" if text not in STORAGES else text
        if text not in _WORDS[word]:
            raise PlanError(f"{word} {value!r} has no price in closed form. Give one of {', '.join(_WORDS[word])}.")
        return text
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = 0
    if number < 1:
        raise PlanError(f"{word} must be a whole number of 1 or more, but is {value!r}.")
    return number
