"""Compiles the calls of a program, each once per mesh, in parallel, the largest first: none is left over at the end.

Lowering is Python, of which one thread runs at a time, so calls are lowered one after the other: the compiler, which is
not Python, starts on the largest as soon as that one is lowered, not when all are.

Actors on the same devices share an executable. CPU clients cannot; but actors whose meshes look alike, with
the same device ids on other clients, get the first one's executable serialised and loaded again, which took
28 to 36 ms where compiling took 170 to 330 (12 layers, backward). What cannot be serialised, such as a call
with a Python callback, is compiled again.

JAX warns about a donated argument that no output can reuse. Here that is no mistake, as a task donates
whatever it is the last to use. So only arguments with an output of the same type are donated to XLA;
the engine drops the others.
"""

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from jaxquard import _jax_compat
from jaxquard.ir.array_type import ArrayType, usable_donations
from jaxquard.ir.jaxpr_tools import Jaxpr, sub_jaxprs
from jaxquard.ir.program import Call, Program, Run
from jaxquard.ir.typed_shardings import explicit_axes
from jaxquard.runtime.engine import Progress
from jaxquard.runtime.transfer import sharding_on

Executable = Callable[..., list[jax.Array]]
_HEARTBEAT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A mesh that calls run on, and whether they return a witness as one more output (see `actor.InFlight`)."""

    mesh: Mesh
    has_witness: bool

    def adds_witness(self, call: Call) -> bool:
        """Returns True if a call returns a witness; one without outputs always does."""
        return self.has_witness or not call.outputs


def compile_calls(
    program: Program, sites: tuple[Site, ...], *, on_progress: Progress | None = None
) -> Mapping[tuple[int, Site], Executable]:
    """Compiles every call for every site where an actor runs it.

    Args:
        sites: one for each actor; equal ones share their executables.
        on_progress: called in this thread with (done, total, name of the call) as executables get ready, and every
            second: an exception of it ends the waiting, and what is being compiled is left behind.
    """
    needed = {
        (instruction.call, site): None
        for actor, site in zip(program.actors, sites, strict=True)
        for instruction in actor.instructions
        if isinstance(instruction, Run)
    }
    groups: dict[tuple[Any, ...], list[Site]] = {}
    for call, site in needed:
        groups.setdefault((call, *_likeness(site)), []).append(site)
    enable_x64 = bool(_jax_compat.is_x64_enabled())
    executables: dict[tuple[int, Site], Executable] = {}
    turns = threading.Lock()
    pool = ThreadPoolExecutor(max_workers=os.cpu_count())
    try:
        largest_first = sorted(groups.items(), key=lambda item: -_count_equations(program.calls[item[0][0]].code.jaxpr))
        futures = {
            pool.submit(_compile_group, program.calls[key[0]], group, enable_x64, turns): (key[0], group)
            for key, group in largest_first
        }
        waiting = set(futures)
        while waiting:
            ready, waiting = wait(waiting, timeout=_HEARTBEAT_S, return_when=FIRST_COMPLETED)
            for future in ready:
                call, group = futures[future]
                executables |= {(call, site): found for site, found in zip(group, future.result(), strict=True)}
                if on_progress is not None:
                    on_progress(len(executables), len(needed), program.calls[call].name)
            if on_progress is not None and not ready:
                name = next(program.calls[call].name for future, (call, _) in futures.items() if future in waiting)
                on_progress(len(executables), len(needed), name)
    except BaseException:
        # What is being compiled cannot be ended.
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
    return executables


def _count_equations(jaxpr: Jaxpr) -> int:
    """Counts the equations of a call, those of its loops included."""
    return sum(1 + sum(map(_count_equations, sub_jaxprs(equation))) for equation in jaxpr.eqns)


def call_donations(call: Call) -> tuple[int, ...]:
    """The donated arguments of a call whose buffers an output of the same type can reuse."""
    inputs, outputs = map(_layout, call.inputs), map(_layout, call.outputs)
    return usable_donations(call.donated, inputs=tuple(inputs), outputs=outputs)


def _likeness(site: Site) -> tuple[Any, ...]:
    """Returns a key that is equal for sites between which an executable can be moved."""
    devices = tuple(site.mesh.devices.flat)
    movable = devices[0].platform == "cpu"
    return (
        site.has_witness,
        site.mesh.axis_names,
        site.mesh.devices.shape,
        tuple(device.id if movable else device for device in devices),
    )


def _compile_group(call: Call, group: list[Site], enable_x64: bool, turns: threading.Lock) -> list[Executable]:
    function = make_function(call, adds_witness=group[0].adds_witness(call))
    first = _compile(call, function, group[0], enable_x64, turns)
    executables = [first]
    for site in group[1:]:
        moved = _jax_compat.load_elsewhere(first, tuple(site.mesh.devices.flat))
        executables.append(moved or _compile(call, function, site, enable_x64, turns))
    return executables


def make_function(call: Call, *, adds_witness: bool) -> Executable:
    """Makes the function to compile for a call."""
    run = jax.extend.core.jaxpr_as_fun(call.code)

    def function(*args: jax.Array) -> list[jax.Array]:
        outputs = list(run(*args))
        return [*outputs, jnp.zeros((), np.int32)] if adds_witness else outputs

    function.__name__ = function.__qualname__ = call.name
    return function


def call_types(call: Call, mesh: Mesh | AbstractMesh) -> list[jax.ShapeDtypeStruct]:
    """Returns the types of a call's arguments, with the explicit axes of the mesh in them."""
    is_typed = bool(explicit_axes(mesh))
    return [
        jax.ShapeDtypeStruct(
            type_.shape,
            _jax_compat.dtype_named(type_.dtype),
            sharding=sharding_on(mesh, type_) if is_typed else None,
        )
        for type_ in call.inputs
    ]


def xla_options_of(call: Call, mesh: Mesh) -> dict[str, Any] | None:
    """Returns the options of XLA for a call; None for those that are set anyway.

    On CPUs, LLVM spends most of the compilation of an init on random bits: 5.5 CPU seconds for 2 layers of a GPT, 1.5
    with few of its passes, and less again with the older emitter. The numbers are the same. A call without inputs only
    makes constants, such as accumulators of zeros: quickly compiled they are filled as fast, in half the compilation.

    All other calls get the second of LLVM's three levels. The third takes 3 to 19 % more of the processor; steps of six
    models took the same time (0.98 to 1.01), five of them to the same bits.
    """
    if mesh.devices.flat[0].platform != "cpu":
        return None
    is_quick = call.runs_once or not call.inputs
    return _jax_compat.quick_cpu_options() if is_quick else _jax_compat.usual_cpu_options()


def _compile(call: Call, function: Executable, site: Site, enable_x64: bool, turns: threading.Lock) -> Executable:
    mesh = site.mesh
    witness = [NamedSharding(mesh, PartitionSpec())] if site.adds_witness(call) else []
    jitted = jax.jit(
        function,
        in_shardings=tuple(sharding_on(mesh, type_) for type_ in call.inputs),
        out_shardings=[sharding_on(mesh, type_) for type_ in call.outputs] + witness,
        donate_argnums=call_donations(call),
    )
    with _jax_compat.lowering_context(mesh.abstract_mesh, enable_x64=enable_x64):
        try:
            with turns:
                lowered = jitted.lower(*call_types(call, mesh))
            return lowered.compile(compiler_options=xla_options_of(call, mesh))
        except Exception as error:
            error.add_note(f"while compiling the task {call.name} for a mesh {dict(mesh.shape)}")
            raise


def _layout(type_: ArrayType) -> tuple[Any, ...]:
    spec = type_.spec
    while spec and not spec[-1]:
        spec = spec[:-1]
    return (type_.dtype, type_.shape, spec)
