"""From a trace of JAX's profiler to what each device did during a run.

What is read was looked up in traces of JAX 0.10 and 0.11:

- On CPU the plane `/host:CPU` has a line for each thread. Each instruction ("thunk") of a program has an event with the
  stats `hlo_op` (its name in the compiled text), `device_ordinal` and `_p`. If it ends in another thread, the event is
  over before it is: an event `end: NAME` follows, whose stat `_c` is the `_p` of the first. That one may come late: the
  thread that ends an instruction often runs what waited for it first. So an instruction has ended, at the latest, when
  one that uses its result starts on the same device.
- On GPU each device has a plane, with a line for each stream, and an event for each kernel, with the stat `hlo_op`;
  where a CUDA graph started it, that is the graph's own. There a kernel of NCCL is known by its name.
- On TPU each device has a plane with a line `XLA Ops`; events are named by the instruction.

A run is found by an annotation, whose event has the label as its name.
Communication is exposed while no computation of the device hides it (`exposed_time`).
"""

import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxquard.hlo import Computation, Module, Operation, parse_module
from jaxquard.pricing.communication.collectives import InstructionKind, instruction_kinds

Interval = tuple[float, float]

HOST = "host"
# They do no work, and traces do not show them.
_TRANSPARENT = frozenset({"get-tuple-element", "tuple", "bitcast", "optimization-barrier"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Instructions:
    """The instructions of a compiled program, as reading a trace needs them: their kinds and their users."""

    kinds: Mapping[str, InstructionKind]
    users: Mapping[str, frozenset[str]]

    @staticmethod
    def of(text: str) -> "Instructions":
        """From `executable.as_text()`."""
        module = parse_module(text)
        return Instructions(kinds=instruction_kinds(module), users=instruction_users(module))

    @property
    def communicate(self) -> bool:
        return InstructionKind.COLLECTIVE in self.kinds.values()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTrace:
    """The work of one device in a run, as intervals in nanoseconds."""

    compute: list[Interval] = field(default_factory=list)
    communication: list[Interval] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTrace:
    """One run: its length in nanoseconds, and what each device did; the virtual devices of a host are one."""

    duration_ns: float
    devices: Mapping[str, DeviceTrace]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    """An event on a device.

    Attributes:
        ordinal: which of the virtual devices of a host.
        is_kernel: whether nothing else runs inside it.
        token: what the event that ends it has too; None if it ends by itself.
    """

    name: str
    device: str
    ordinal: Any
    start_ns: float
    end_ns: float
    is_kernel: bool
    token: Any


def read_trace(data: Any, runs: Mapping[str, Instructions]) -> dict[str, RunTrace]:
    """Returns a trace of each run.

    Args:
        data: a `jax.profiler.ProfileData`.
        runs: for each label of a run, the instructions of its program.
    """
    windows, events, ends_ns = _read(data, runs.keys())
    found = {}
    for label, (start_ns, end_ns) in windows.items():
        within = [event for event in events if start_ns <= event.start_ns < end_ns]
        devices = _sort(within, runs[label], {**ends_ns, None: end_ns})
        found[label] = RunTrace(duration_ns=end_ns - start_ns, devices=devices)
    return found


def _sort(events: Iterable[_Event], instructions: Instructions, ends_ns: Mapping[Any, float]) -> dict[str, DeviceTrace]:
    """Returns the trace of each device."""
    starts_ns: dict[tuple[Any, str], list[float]] = defaultdict(list)
    for event in sorted(events, key=lambda event: event.start_ns):
        starts_ns[event.ordinal, event.name].append(event.start_ns)
    devices: dict[str, DeviceTrace] = defaultdict(DeviceTrace)
    for event in events:
        kind = _kind(event, instructions.kinds)
        if kind is not InstructionKind.CONTAINER:
            trace = devices[event.device]
            place = trace.communication if kind is InstructionKind.COLLECTIVE else trace.compute
            place.append((event.start_ns, _end_ns(event, instructions, starts_ns, ends_ns)))
    return dict(devices)


def _end_ns(
    event: _Event,
    instructions: Instructions,
    starts_ns: Mapping[tuple[Any, str], list[float]],
    ends_ns: Mapping[Any, float],
) -> float:
    """Returns its end: by its own event, by the one that marks it done, or by the start of its first user."""
    if event.token is None:
        return min(event.end_ns, ends_ns[None])
    end_ns = min(ends_ns.get(event.token, event.end_ns), ends_ns[None])
    for user in instructions.users.get(event.name, ()):
        later_ns = starts_ns.get((event.ordinal, user), [])
        position = bisect.bisect_right(later_ns, event.start_ns)
        end_ns = min([end_ns, *later_ns[position : position + 1]])
    return end_ns


def _kind(event: _Event, kinds: Mapping[str, InstructionKind]) -> InstructionKind:
    if event.is_kernel and "nccl" in event.name.lower():
        return InstructionKind.COLLECTIVE
    kind = kinds.get(event.name, InstructionKind.COMPUTE)
    return InstructionKind.COMPUTE if event.is_kernel and kind is InstructionKind.CONTAINER else kind


def _read(data: Any, labels: Any) -> tuple[dict[str, Interval], list[_Event], dict[Any, float]]:
    """The windows of the runs, the events on devices, and when those ended that say so apart."""
    windows: dict[str, Interval] = {}
    events: list[_Event] = []
    ends_ns: dict[Any, float] = {}
    for plane in data.planes:
        for line in plane.lines:
            for event in line.events:
                if event.name in labels:
                    windows[event.name] = event.start_ns, event.end_ns
                elif event.name.startswith("end: "):
                    ends_ns[dict(event.stats).get("_c")] = event.end_ns
                else:
                    events += _device_events(plane.name, line.name, event)
    ends_ns.pop(None, None)
    return windows, events, ends_ns


def _device_events(plane: str, line: str, event: Any) -> Iterator[_Event]:
    """The event, if it is a device's."""
    is_device, is_kernel = plane.startswith("/device:"), line.startswith("Stream")
    if is_device and not (is_kernel or line == "XLA Ops"):
        return
    stats = dict(event.stats) if not is_device or is_kernel else {}
    name = stats.get("hlo_op")
    if is_kernel:
        name = event.name if name is None or "nccl" in event.name.lower() else name
    elif is_device:
        name = event.name.split(" ")[0].removeprefix("%")
    if name is not None:
        yield _Event(
            name=str(name),
            device=plane if is_device else HOST,
            ordinal=stats.get("device_ordinal"),
            start_ns=event.start_ns,
            end_ns=event.end_ns,
            is_kernel=is_kernel,
            token=stats.get("_p"),
        )


def exposed_time(communication: Iterable[Interval], compute: Iterable[Interval]) -> float:
    """Returns how long at least one interval of communication is under way, and none of computation.

    Intervals are (start, end), in any order and any unit; they may overlap, nest and repeat.
    """
    edges: list[tuple[float, int, int]] = []
    for start, end in communication:
        edges += [(start, 1, 0), (end, -1, 0)]
    for start, end in compute:
        edges += [(start, 0, 1), (end, 0, -1)]
    total, before = 0.0, 0.0
    num_communicating = num_computing = 0
    for time, communicates, computes in sorted(edges):
        if num_communicating > 0 and num_computing == 0:
            total += time - before
        num_communicating += communicates
        num_computing += computes
        before = time
    return total


def instruction_users(module: Module) -> Mapping[str, frozenset[str]]:
    """For each instruction, those that cannot start before it has ended, by name; some, not all of them.

    What ends the body of a loop is waited for by the condition, and by the users of the loop; what ends a branch or a
    called computation, by the users of its caller.
    """
    users: dict[str, set[str]] = defaultdict(set)
    for computation in module.computations.values():
        for operation in computation.operations:
            for name in _sources(operation, computation):
                users[name].add(operation.name)
    for computation in module.computations.values():
        for caller in computation.operations:
            for called in _run_apart(caller, module):
                for name in _results(called):
                    users[name] |= users[caller.name] | _conditions(caller, module)
    return {name: frozenset(found) for name, found in users.items()}


def _sources(operation: Operation, computation: Computation) -> set[str]:
    """The instructions that do work whose results an instruction takes."""
    found, waiting = set(), list(operation.operands)
    while waiting:
        source = computation.operation(waiting.pop())
        if source.opcode in _TRANSPARENT:
            waiting += source.operands
        else:
            found.add(source.name)
    return found


def _results(computation: Computation) -> set[str]:
    (root,) = (operation for operation in computation.operations if operation.is_root)
    return _sources(root, computation) if root.opcode in _TRANSPARENT else {root.name}


def _run_apart(caller: Operation, module: Module) -> list[Computation]:
    """The computations whose instructions run one by one."""
    runs = caller.opcode in ("while", "conditional", "call")
    return [module.computations[name] for name in caller.calls] if runs else []


def _conditions(caller: Operation, module: Module) -> set[str]:
    """The instructions that decide whether a loop goes on."""
    name = caller.attribute("condition")
    if caller.opcode != "while" or name is None:
        return set()
    return {operation.name for operation in module.computations[name.removeprefix("%")].operations}
