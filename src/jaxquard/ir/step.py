"""A traced step: the jaxpr that the first passes rewrite."""

from dataclasses import dataclass, field
from typing import Any

from jaxquard.ir.jaxpr_tools import Jaxpr


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The user's step as one jaxpr.

    Attributes:
        jaxpr: its inputs are the step's flat arguments, then what the step closed over.
        constants: values of those last inputs.
        arg_parts: for each flat argument, the sizes along its first dim of the parts in which it
            comes (one jaxpr input per part); empty for one that comes whole.
        result_parts: the same for the flat results.
    """

    jaxpr: Jaxpr
    constants: tuple[Any, ...] = field(repr=False, compare=False)
    arg_parts: tuple[tuple[int, ...], ...]
    result_parts: tuple[tuple[int, ...], ...]

    @property
    def num_inputs(self) -> int:
        """Jaxpr inputs that are arguments or parts of arguments."""
        return sum(max(1, len(parts)) for parts in self.arg_parts)

    def __str__(self) -> str:
        return str(self.jaxpr)
