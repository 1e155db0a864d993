"""Exports calls to other processes as StableHLO, lowered here for devices that need not be here (design decision 6).

`jax.export` lowers on the abstract mesh of the actors, so a controller with one CPU device exports a module for four
GPUs. The process that gets it compiles it for its own devices (`import_call`).

`jax.export` guards modules that are kept for years; ours live as long as the mesh, and both ends run the same version
of JAX, so custom calls without a guarantee of compatibility are let through. Calls back into Python are not: there is
no Python of the controller in the other process.
"""

import re
from typing import Any

import jax
from jax import export
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from jaxquard import _jax_compat
from jaxquard.errors import MeshError
from jaxquard.ir.program import Call
from jaxquard.runtime.program.compile_calls import (
    Executable,
    call_donations,
    call_types,
    make_function,
    xla_options_of,
)
from jaxquard.runtime.transfer import sharding_on

# What JAX says of callbacks on devices that are not here; with ordered effects or shards, the latter.
_CALLS_BACK = ("callback", "primitives that require devices to be present during lowering")
_CUSTOM_CALL = re.compile(r'custom_call @"?([^\s"(]+)|call_target_name = "([^"]+)"')


def export_call(call: Call, *, mesh: AbstractMesh, platform: str, adds_witness: bool) -> bytes:
    """Exports a call as bytes.

    Raises:
        MeshError: if it calls back into Python.
    """
    function = jax.jit(
        make_function(call, adds_witness=adds_witness),
        in_shardings=tuple(sharding_on(mesh, type_) for type_ in call.inputs),
        out_shardings=_out_shardings(call, mesh, adds_witness),
    )
    try:
        with _jax_compat.lowering_context(mesh, enable_x64=_jax_compat.is_x64_enabled()):
            return bytes(_export(function, call_types(call, mesh), platform).serialize())
    except (NotImplementedError, ValueError) as error:
        if not any(words in str(error) for words in _CALLS_BACK):
            raise
        raise MeshError(
            f"the task {call.name} calls back into Python (jax.debug.print, jax.pure_callback or their kind), and "
            'its actor is another process. Take the callback out, or use runtime="in_process".'
        ) from error


def _export(function: Any, types: list[jax.ShapeDtypeStruct], platform: str) -> Any:
    """Exports, and allows the custom calls that `jax.export` refuses."""
    checks: list[Any] = []
    while True:
        try:
            return export.export(function, platforms=[platform], disabled_checks=checks)(*types)
        except ValueError as error:
            names = _custom_calls(str(error)) - {check.is_custom_call() for check in checks}
            if not names:
                raise
            checks += [export.DisabledSafetyCheck.custom_call(name) for name in sorted(names)]


def _custom_calls(message: str) -> set[str]:
    """Finds the custom calls that an error of `jax.export` names."""
    if "no compatibility guarantees" not in message:
        return set()
    return {short or long for short, long in _CUSTOM_CALL.findall(message)}


def import_call(code: bytes, call: Call, *, mesh: Mesh, adds_witness: bool) -> Executable:
    """Compiles exported code for the devices of a mesh."""
    exported = export.deserialize(bytearray(code))

    def function(*args: jax.Array) -> Any:
        return exported.call(*args)

    function.__name__ = function.__qualname__ = call.name
    jitted = jax.jit(
        function,
        in_shardings=tuple(sharding_on(mesh, type_) for type_ in call.inputs),
        out_shardings=_out_shardings(call, mesh, adds_witness),
        donate_argnums=call_donations(call),
    )
    return jitted.lower(*call_types(call, mesh)).compile(compiler_options=xla_options_of(call, mesh))


def _out_shardings(call: Call, mesh: Any, adds_witness: bool) -> list[NamedSharding]:
    witness = [NamedSharding(mesh, PartitionSpec())] if adds_witness else []
    return [sharding_on(mesh, type_) for type_ in call.outputs] + witness
