"""From a scheduled module to a typed list of its operations (`schedule`)."""

from collections.abc import Iterator, Mapping
from typing import Any

from jaxquard.errors import HloError
from jaxquard.hlo.async_pairs import AsyncRole, async_pairs, async_role, find_collective, holds_product, is_collective
from jaxquard.hlo.backend_config import estimated_cycles
from jaxquard.hlo.module import Computation, Module, Operation
from jaxquard.hlo.replica_groups import replica_groups
from jaxquard.hlo.schedule import CollectiveWork, OperationKind, ScheduledOperation
from jaxquard.hlo.trip_counts import called, trip_count
from jaxquard.hlo.work.arithmetic import element_arithmetic
from jaxquard.hlo.work.custom_calls import CallWork, call_work, estimated_product
from jaxquard.hlo.work.kernels import kernel_class, widest_dtype
from jaxquard.hlo.work.matrix_products import MatrixProduct, matrix_products
from jaxquard.hlo.work.memory_traffic import memory_traffic

_FREE = frozenset(
    "parameter constant tuple get-tuple-element bitcast after-all partition-id replica-id opt-barrier add-dependency "
    "domain get-dimension-size set-dimension-size rng-get-and-update-state".split()
)


def list_schedule(module: Module) -> tuple[ScheduledOperation, ...]:
    """Returns the operations of a scheduled module, from its entry on.

    Raises:
        HloError: if the module is not scheduled, or an operation cannot be read; it quotes the line.
    """
    if not module.is_scheduled:
        raise HloError(f"module {module.name} is not scheduled (is_scheduled=true); take the text of compiled code.")
    return _Lister(module).list(module.main)


class _Lister:
    """Lists computations of a module, each once."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._known: dict[str, tuple[ScheduledOperation, ...]] = {}
        self._is_tpu = is_for_tpu(module)

    def list(self, computation: Computation) -> tuple[ScheduledOperation, ...]:
        if computation.name not in self._known:
            self._known[computation.name] = tuple(self._operations(computation))
        return self._known[computation.name]

    def _operations(self, computation: Computation) -> Iterator[ScheduledOperation]:
        starts = async_pairs(self._module, computation)
        for operation in computation.operations:
            role = async_role(self._module, operation)
            if operation.opcode in _FREE or role is AsyncRole.UPDATE or _is_free_call(operation):
                continue
            try:
                yield self._read(operation, computation, role, starts)
            except HloError:
                raise
            except (LookupError, ValueError, AssertionError, StopIteration) as error:
                raise HloError(
                    f"expected the operands and attributes of {operation.opcode}, but cannot read them from: "
                    f"{operation.line}"
                ) from error

    def _read(
        self, operation: Operation, computation: Computation, role: AsyncRole | None, starts: Mapping[str, str]
    ) -> ScheduledOperation:
        if operation.opcode in ("while", "conditional", "call"):
            return self._container(operation, computation)
        if role is AsyncRole.DONE:
            return self._done(operation, computation, starts)
        if role is AsyncRole.START:
            return self._start(operation, computation)
        return self._run(operation, computation)

    def _container(self, operation: Operation, computation: Computation) -> ScheduledOperation:
        module = self._module
        if operation.opcode == "while":
            kind, times, names = (
                OperationKind.LOOP,
                trip_count(module, operation, computation),
                [called(operation, "body")],
            )
        elif operation.opcode == "conditional":
            kind, times, names = OperationKind.BRANCH, 1, list(operation.calls)
        else:
            kind, times, names = OperationKind.CALL, 1, list(operation.calls)
        bodies = tuple(self.list(module.computations[name]) for name in names)
        return self._scheduled(operation, computation, kind, times=times, bodies=bodies)

    def _done(self, operation: Operation, computation: Computation, starts: Mapping[str, str]) -> ScheduledOperation:
        if operation.name not in starts:
            raise HloError(f"expected a start for the end of a transfer, but found none for: {operation.line}")
        return self._scheduled(operation, computation, OperationKind.DONE, start=starts[operation.name])

    def _start(self, operation: Operation, computation: Computation) -> ScheduledOperation:
        several = [one for one in self._module.inside(operation) if is_collective(one.opcode)][1:]
        # Collectives that a compiler starts as a group are listed each by itself.
        is_group = bool(several) and operation.opcode == "async-start"
        work = None if is_group else self._collective(operation, computation)
        if work is None and operation.opcode == "async-start":
            (name,) = operation.calls
            bodies = (self.list(self._module.computations[name]),)
            return self._scheduled(operation, computation, OperationKind.START, bodies=bodies)
        if work is not None:
            return self._scheduled(operation, computation, OperationKind.START, collective=work)
        # A copy between memories: the results have what is read, what is written, and a flag.
        moved = max(shape.size_bytes for shape in operation.results[1:] or operation.results)
        return self._scheduled(operation, computation, OperationKind.START, read_bytes=moved)

    def _run(self, operation: Operation, computation: Computation) -> ScheduledOperation:
        work = self._collective(operation, computation)
        if work is not None and not holds_product(self._module, operation):
            return self._scheduled(operation, computation, OperationKind.COLLECTIVE, collective=work)
        read, written = memory_traffic(operation, computation, self._module, is_tpu=self._is_tpu)
        products = self._products(operation, computation)
        return self._scheduled(
            operation,
            computation,
            OperationKind.COMPUTE,
            read_bytes=read,
            written_bytes=written,
            products=products,
            kernel=kernel_class(operation, computation, self._module, has_product=bool(products)),
            dtype=widest_dtype(operation, computation),
            arithmetic=element_arithmetic(operation, computation, self._module),
            cycles=estimated_cycles(operation),
        )

    def _scheduled(
        self, operation: Operation, computation: Computation, kind: OperationKind, **more: Any
    ) -> ScheduledOperation:
        return ScheduledOperation(
            name=operation.name,
            computation=computation.name,
            kind=kind,
            opcode=operation.opcode,
            source=(operation.attribute("op_name") or "").strip('"'),
            **more,
        )

    def _products(self, operation: Operation, computation: Computation) -> tuple[MatrixProduct, ...]:
        calls = [one for one in self._module.inside(operation) if one.opcode == "custom-call"]
        if self._is_tpu and operation.opcode == "fusion":
            # Marks of the compiler's own, not kernels: the fusion is one kernel.
            calls = []
        estimated = [estimated_product(one) for one in calls if call_work(one) is CallWork.ESTIMATED]
        return (*matrix_products(operation, computation, self._module), *(one for found in estimated for one in found))

    def _collective(self, operation: Operation, computation: Computation) -> CollectiveWork | None:
        found = find_collective(self._module, operation)
        if found is None:
            return None
        collective, holder = found[0], found[1] or computation
        opcode, is_start = collective.opcode.removesuffix("-start"), collective.opcode.endswith("-start")
        given = sum(holder.operation(name).result_bytes for name in collective.operands)
        # A start may give back its operands too, and flags; what the device gets is the rest.
        taken = sum(shape.size_bytes for shape in collective.results if shape.sizes or not is_start)
        taken -= given if is_start and taken > given else 0
        if opcode == "all-reduce" and holder is not computation and operation.opcode == "fusion":
            opcode = _kept(operation, opcode, given)
        return CollectiveWork(
            opcode=opcode, size_bytes=max(given, taken), groups=replica_groups(collective, self._module)
        )


def _kept(fusion: Operation, opcode: str, given: int) -> str:
    """A TPU fuses a sum with the slice of it that a device keeps."""
    return "reduce-scatter" if 0 < 2 * fusion.result_bytes <= given else opcode


def _is_free_call(operation: Operation) -> bool:
    return operation.opcode == "custom-call" and call_work(operation) is CallWork.NOTHING


def is_for_tpu(module: Module) -> bool:
    """Returns true if a TPU's compiler has written the module: its settings have memories and cycles.

    Copies between memories do not say so: a GPU that keeps activations in the host's memory has them too.
    """
    return any(
        word in operation.attributes
        for computation in module.computations.values()
        for operation in computation.operations
        for word in ("scoped_memory_configs", "estimated_cycles")
    )
