"""A scheduled module as a small typed list: what a chip starts, in order, and the work of each.

    kind         an operation that
    compute      runs on the chip: its products, the bytes that it reads and writes, the compiler's own cycles
    collective   joins groups of chips while this one waits
    start, done  begins a transfer (a collective, or a copy in memory), and waits for it
    loop         runs its body so many times
    branch       runs one of its bodies
    call         runs its body once

What costs nothing (parameters, constants, tuples, bitcasts) is left out. An operation that cannot be read is an error.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from jaxquard.hlo.replica_groups import Groups
from jaxquard.hlo.work.kernels import KernelClass
from jaxquard.hlo.work.matrix_products import MatrixProduct


class OperationKind(enum.Enum):
    """The kind of a scheduled operation."""

    COMPUTE = "compute"
    COLLECTIVE = "collective"
    START = "start"
    DONE = "done"
    LOOP = "loop"
    BRANCH = "branch"
    CALL = "call"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveWork:
    """The work of a collective, as one device sees it.

    Attributes:
        opcode: without `-start`; a TPU's sum of which a device keeps a slice is a `reduce-scatter`.
        size_bytes: of the array that is whole over a group: the larger of what a device gives and gets.
        groups: the devices that take part together; pairs of source and target of a permute.
    """

    opcode: str
    size_bytes: int
    groups: Groups


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledOperation:
    """One operation of a schedule.

    Attributes:
        computation: the name of the computation that it is in.
        products: the matrix products that it computes.
        arithmetic: operations on elements beside the products, one an element of each result; functions such as
            `exponential` count for several.
        kernel: the kind of kernel that it runs as.
        dtype: of a kernel's widest array.
        cycles: the compiler's own estimate; None where it gives none.
        collective: of a collective, or of the start of one.
        start: of a done, the operation that it waits for.
        times: of a loop, its iterations.
        bodies: of a loop or call one; of a branch, each.
        source: the place in the user's program, JAX's `op_name`.
    """

    name: str
    computation: str
    kind: OperationKind
    opcode: str
    read_bytes: int = 0
    written_bytes: int = 0
    products: tuple[MatrixProduct, ...] = ()
    arithmetic: int = 0
    kernel: KernelClass | None = None
    dtype: str = ""
    cycles: int | None = None
    collective: CollectiveWork | None = None
    start: str | None = None
    times: int = 1
    bodies: tuple[tuple["ScheduledOperation", ...], ...] = ()
    source: str = ""

    @property
    def flops(self) -> float:
        return sum(product.flops for product in self.products)


def schedule_text(operations: tuple[ScheduledOperation, ...], indent: str = "") -> str:
    """Returns a schedule as text, a line for each operation; bodies are indented."""
    return "".join(f"{line}\n" for operation in operations for line in _lines(operation, indent))


def _lines(operation: ScheduledOperation, indent: str) -> Iterator[str]:
    words = [f"{indent}{operation.kind.value} {operation.name} {operation.opcode}"]
    words += [
        f"{product.batch:g}x[{product.m:g},{product.k:g},{product.n:g}]{product.dtype}"
        for product in operation.products
    ]
    if operation.kernel is not None:
        words.append(operation.kernel.value)
    if operation.read_bytes or operation.written_bytes:
        words.append(f"read={operation.read_bytes} written={operation.written_bytes}")
    if operation.arithmetic:
        words.append(f"arithmetic={operation.arithmetic}")
    if operation.cycles is not None:
        words.append(f"cycles={operation.cycles}")
    if operation.collective is not None:
        groups = ",".join("{" + ",".join(map(str, group)) + "}" for group in operation.collective.groups)
        words.append(f"{operation.collective.opcode} bytes={operation.collective.size_bytes} groups={groups}")
    if operation.start is not None:
        words.append(f"of {operation.start}")
    if operation.times != 1:
        words.append(f"times={operation.times}")
    yield " ".join(words)
    for number, body in enumerate(operation.bodies):
        if len(operation.bodies) > 1:
            yield f"{indent}  body {number}"
        yield from schedule_text(body, indent + "    ").splitlines()
