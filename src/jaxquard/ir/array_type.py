"""Shape, dtype and sharding of a value, as plain data with a text form.

`float32[16,64]` is whole on every device of the actor's mesh; `float32[16,64]{data,-}` has its
first dim sharded over the mesh axis `data`, and `{data+model,-}` over two axes. The dtype is JAX's
own name, also for extended ones (`key<fry>[]`).
"""

import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

type_text = re.compile(r"([\w<>.]+)\[([\d,]*)\](?:\{([^}]*)\})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayType:
    """The type of a value in a slot.

    Attributes:
        spec: for each leading dim, the mesh axes over which it is sharded; dims beyond its end are whole.
    """

    dtype: str
    shape: tuple[int, ...]
    spec: tuple[tuple[str, ...], ...] = ()

    def __str__(self) -> str:
        text = f"{self.dtype}[{','.join(map(str, self.shape))}]"
        if any(self.spec):
            text += "{" + ",".join("+".join(axes) or "-" for axes in self.spec) + "}"
        return text

    @classmethod
    def parse(cls, text: str) -> "ArrayType":
        """Reads what `str` wrote."""
        match = type_text.fullmatch(text.strip())
        assert match is not None, f"not an array type: {text!r}"
        dtype, shape, spec = match.groups()
        return cls(
            dtype=dtype,
            shape=tuple(int(size) for size in shape.split(",") if size),
            spec=tuple(() if axes == "-" else tuple(axes.split("+")) for axes in (spec or "").split(",") if axes),
        )


def type_bytes(type_: ArrayType, axis_sizes: Mapping[str, int] = MappingProxyType({})) -> int:
    """Returns the bytes of a value of this type: of all of it, or of one device's share.

    Args:
        axis_sizes: the sizes of mesh axes, over which the dims that the type names are sharded.
    """
    from jaxquard import _jax_compat

    dtype: Any = _jax_compat.dtype_named(type_.dtype)
    size = dtype.itemsize
    for dim, axes in zip_longest(type_.shape, type_.spec[: len(type_.shape)], fillvalue=()):
        assert isinstance(dim, int), type_
        size *= -(-dim // math.prod(axis_sizes.get(axis, 1) for axis in axes))
    return size


def usable_donations(
    donated: Iterable[int], *, inputs: Sequence[Hashable], outputs: Iterable[Hashable]
) -> tuple[int, ...]:
    """Returns the donated inputs whose buffers outputs can reuse, an output one of them; JAX warns of the others.

    Args:
        donated: positions of inputs; the first ones are served first.
        inputs: for each input a key, equal for equal shape, dtype and sharding.
        outputs: the same of the outputs.
    """
    free = Counter(outputs)
    usable = []
    for position in donated:
        if free[inputs[position]] > 0:
            free[inputs[position]] -= 1
            usable.append(position)
    return tuple(usable)
