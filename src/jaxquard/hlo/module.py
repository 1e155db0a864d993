"""A compiled program: computations, each a list of operations in the order in which the text has them.

If `is_scheduled`, that order is the one in which a chip starts them. Names are without the `%` of the text.
"""

import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_BITS = re.compile(r"[a-z]+(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayShape:
    """One array.

    Attributes:
        dtype: the element type as HLO writes it (`bf16`, `f32`, `pred`).
        layout: the dims in memory, the one that changes fastest first; () where the text does not say.
        memory_space: 0 for the chip's main memory; of a TPU, 1 is the memory on the chip, 2 and more hold flags and
            scalars; 5 is the host's memory.
    """

    dtype: str
    sizes: tuple[int, ...]
    layout: tuple[int, ...] = field(default=(), compare=False)
    memory_space: int = field(default=0, compare=False)

    @property
    def size_bytes(self) -> int:
        """Without padding; types narrower than a byte count as packed, tokens as nothing."""
        if self.dtype == "token":
            return 0
        bits = _BITS.match(self.dtype)
        return -(-math.prod(self.sizes) * (int(bits[1]) if bits else 8) // 8)

    @property
    def memory_order(self) -> tuple[int, ...]:
        """The layout without dims of size 1, which lie nowhere in particular."""
        return tuple(dim for dim in self.layout if self.sizes[dim] != 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One line of a computation.

    Attributes:
        opcode: `fusion`, `all-gather-start`, `convolution`, ...
        results: the arrays that it gives, those of nested tuples one after the other.
        operands: the names of the operations whose results it takes.
        calls: the names of the computations that it runs (fused, applied, branches, bodies).
        arguments: the text between the brackets after the opcode.
        attributes: the text after them, as it is written.
    """

    name: str
    opcode: str
    results: tuple[ArrayShape, ...]
    operands: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    arguments: str = ""
    attributes: str = ""
    is_root: bool = False

    @property
    def line(self) -> str:
        """The beginning of its line, to quote."""
        return f"{self.name} = {self.opcode}({self.arguments}), {self.attributes}"[:200]

    @property
    def result_bytes(self) -> int:
        return sum(shape.size_bytes for shape in self.results)

    def attribute(self, name: str) -> str | None:
        """Returns the value of `name=value`, with its braces or quotes; None if there is no such attribute."""
        found = re.search(rf'(?:^|[ ,{{]){re.escape(name)}=("[^"]*"|\{{[^{{}}]*\}}|[^,\s{{}}]+)', self.attributes)
        return found[1] if found else None


@dataclass(frozen=True, kw_only=True)
class Computation:
    """A function of the module; no slots, as it keeps an index of its names once asked."""

    name: str
    operations: tuple[Operation, ...]

    @functools.cached_property
    def positions(self) -> Mapping[str, int]:
        """The position of each name in `operations`."""
        return {operation.name: position for position, operation in enumerate(self.operations)}

    def operation(self, name: str) -> Operation:
        """Returns the operation with this name."""
        return self.operations[self.positions[name]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A whole compiled program.

    Attributes:
        entry: the name of the computation where it begins.
        num_replicas: that run it, each in `num_partitions` devices; JAX has one replica, and a partition a device.
    """

    name: str
    entry: str
    is_scheduled: bool
    num_replicas: int = 1
    num_partitions: int = 1
    computations: Mapping[str, Computation] = field(default_factory=dict)

    @property
    def num_devices(self) -> int:
        return self.num_replicas * self.num_partitions

    @property
    def main(self) -> Computation:
        return self.computations[self.entry]

    def inside(self, operation: Operation) -> tuple[Operation, ...]:
        """Returns the operation and all those of the computations that it runs, at any depth."""
        found, waiting, seen = [operation], list(operation.calls), set(operation.calls)
        while waiting:
            for inner in self.computations[waiting.pop()].operations:
                found.append(inner)
                waiting += [name for name in inner.calls if name not in seen]
                seen.update(inner.calls)
        return tuple(found)
