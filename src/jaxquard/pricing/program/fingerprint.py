"""A cheap key of a program: two programs share it only if they lower to the same, and it is the same in every process.

Variables count by their order of definition; parameters by value. Where a parameter cannot be distinguished by value (a
function of the user's, an object that prints its address), there is no cheap key, and the lowered text must serve
(`lower_program.lowered_key`). Parameters that are there for differentiation alone do not count.

A key of 100 programs that share one jaxpr costs one walk over it.
"""

import dataclasses
import enum
import functools
import hashlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from jaxquard.ir.jaxpr_tools import is_var
from jaxquard.pricing.program.sharded_program import ShardedProgram

_ADDRESS = re.compile(r"0x[0-9a-fA-F]{4,}")
# Thunks that differentiation calls, by primitive; evaluating the equation does not look at them.
_ONLY_TO_DIFFERENTIATE = {
    "custom_jvp_call": {"jvp_jaxpr_fun", "jvp_jaxpr_thunk", "jvp_fun"},
    "custom_vjp_call": {"fwd_jaxpr_thunk", "fwd", "bwd", "out_trees"},
    "checkpoint": {"policy"},
    "remat2": {"policy"},
}


class _NoKeyError(Exception):
    """A value that cannot be distinguished from others by what it prints."""


class Fingerprints:
    """Keys of programs; remembers the jaxprs that it has walked over."""

    def __init__(self) -> None:
        # The jaxpr is kept beside its key: an id is good only as long as its object lives.
        self._known: dict[int, tuple[Any, str | None]] = {}

    def key(self, program: ShardedProgram) -> str | None:
        """The key of a program without its name; None if it has none."""
        walked = self._jaxpr_key(program.jaxpr)
        if walked is None:
            return None
        specs = (*map(_write, (program.in_specs, program.out_specs)), _write_constraints(program.constraints))
        return _digest(walked, f"tuple({','.join(specs)},{_write(program.donated)})")

    def _jaxpr_key(self, closed: Any) -> str | None:
        if id(closed) not in self._known:
            try:
                # Prices of before callbacks were left out (`drop_callbacks`) have the key without the mark.
                key = _digest(_write(closed), *(["silent"] if closed.effects else []))
            except Exception:  # Parameters may be anything; what cannot be written has no cheap key.
                key = None
            self._known[id(closed)] = (closed, key)
        return self._known[id(closed)][1]


def operation_texts(jaxpr: Any) -> list[str]:
    """A text for each operation, the same in every process; values that cannot be distinguished are left out."""
    return list(_lines(jaxpr, _write_what_can_be))[1:-1]


def loose_key(jaxpr: Any) -> str:
    """A key of a jaxpr that may have no other: one that differs in what cannot be distinguished shares it."""
    return _digest(*_lines(jaxpr, _write_what_can_be))


def _write_what_can_be(value: Any) -> str:
    try:
        return _write(value)
    except Exception:  # As in `_jaxpr_key`; bodies have more inside that can be written.
        if isinstance(value, core.Jaxpr | core.ClosedJaxpr):
            return "\n".join(_lines(getattr(value, "jaxpr", value), _write_what_can_be))
        return ",".join(map(_write_what_can_be, value)) if isinstance(value, tuple | list) else ""


def combine_keys(*keys: str) -> str:
    """One key for several."""
    return _digest(*keys)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _write(value: Any) -> str:
    """A text that two values share only if they are equal."""
    return _writer(type(value))(value)


@functools.cache
def _writer(kind: type) -> Callable[[Any], str]:
    return next((write for kinds, write in _WRITERS if issubclass(kind, kinds)), _write_other)


def _write_jaxpr(value: Any) -> str:
    jaxpr = getattr(value, "jaxpr", value)
    return "{" + "\n".join((*_lines(jaxpr, _write), _write(tuple(getattr(value, "consts", ()))))) + "}"


def _lines(jaxpr: Any, write: Callable[[Any], str]) -> Iterator[str]:
    """The inputs, a line for each operation, the outputs."""
    numbers: dict[Any, int] = {}
    # Layers that were one body share parameters and settings; the jaxpr holds them, so that an id is good here.
    settings: dict[tuple[int, int], tuple[str, str]] = {}

    def define(var: Any) -> str:
        return f"{numbers.setdefault(var, len(numbers))}:{_write_aval(var.aval)}"

    def use(atom: Any) -> str:
        return str(numbers[atom]) if is_var(atom) else f"{_write_aval(atom.aval)}={_write(atom.val)}"

    yield ",".join(map(define, jaxpr.constvars)) + "\n" + ",".join(map(define, jaxpr.invars))
    for equation in jaxpr.eqns:
        inputs = ",".join(map(use, equation.invars))
        results = ",".join(map(define, equation.outvars))
        key = id(equation.params), id(getattr(equation, "ctx", None))
        if key not in settings:
            settings[key] = f"{equation.primitive.name}{_write_params(equation, write)}", _context(equation)
        operation, context = settings[key]
        yield f"{results}={operation}({inputs}){context}"
    yield ",".join(map(use, jaxpr.outvars))


def _write_params(equation: Any, write: Callable[[Any], str]) -> str:
    skipped = _ONLY_TO_DIFFERENTIATE.get(equation.primitive.name, ())
    return "[" + ";".join(f"{k}={write(v)}" for k, v in sorted(equation.params.items()) if k not in skipped) + "]"


def _context(equation: Any) -> str:
    """Returns the settings around the operation that differ from the usual ones."""
    usual = {
        "compute_type": None,
        "xla_metadata": None,
        "threefry_partitionable": getattr(jax.config, "jax_threefry_partitionable", None),
    }
    context = getattr(equation, "ctx", None)
    found = {name: getattr(context, name, value) for name, value in usual.items()}
    changed = [f"{name}={value}" for name, value in found.items() if value != usual[name]]
    return f"@{','.join(changed)}" if changed else ""


@functools.lru_cache(maxsize=4096)
def _write_aval(aval: Any) -> str:
    shape = getattr(aval, "shape", None)
    if shape is None:
        return _write_other(aval)
    sharding = getattr(aval, "sharding", None)
    return f"{aval.dtype}{tuple(shape)}{'w' if getattr(aval, 'weak_type', False) else ''}{_short(sharding)}"


def _short(sharding: Any) -> str:
    """Nothing for the sharding that all values have outside of explicit meshes."""
    if sharding is None or getattr(getattr(sharding, "mesh", None), "empty", False):
        return ""
    return _write(sharding)


def _write_array(value: Any) -> str:
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        return f"keys {value.dtype} {_write_array(jax.random.key_data(value))}"
    array = np.asarray(value)
    return f"{array.dtype}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}"


def _write_many(value: Any) -> str:
    return f"{type(value).__name__}({','.join(map(_write, value))})"


def _write_set(value: Any) -> str:
    return f"{type(value).__name__}({','.join(sorted(map(_write, value)))})"


def _write_dict(value: Any) -> str:
    return "{" + ",".join(sorted(f"{_write(key)}:{_write(item)}" for key, item in value.items())) + "}"


def _write_mesh(mesh: Any) -> str:
    if mesh.empty:
        return "no mesh"
    devices = [device.id for device in mesh.devices.flat] if isinstance(mesh, Mesh) else None
    return f"mesh{tuple(mesh.shape.items())}{getattr(mesh, 'axis_types', ())}{devices}"


def _write_sharding(value: NamedSharding) -> str:
    return f"{_write(value.mesh)}{_write(value.spec)}{value.memory_kind}"


def _write_spec(value: PartitionSpec) -> str:
    """With what it leaves open or reduces, which `tuple(spec)` does not have."""
    return repr(value)


def _write_constraints(constraints: Sequence[tuple[int, int, PartitionSpec]]) -> str:
    """As `_write` does, but a thousand values are held in a few dozen ways, so each of these is written once."""
    # By identity: equal specs need not print the same.
    texts = {id(spec): _write(spec) for spec in {id(spec): spec for _, _, spec in constraints}.values()}
    held = (f"tuple(int:{place},int:{output},{texts[id(spec)]})" for place, output, spec in constraints)
    return f"tuple({','.join(held)})"


def _write_enum(value: enum.Enum) -> str:
    return f"{type(value).__qualname__}.{value.name}"


def _write_function(value: Any) -> str:
    """JAX's own functions by name, which is theirs alone; those of others may change behind it."""
    if isinstance(value, functools.partial):
        return f"partial({_write(value.func)},{_write(value.args)},{_write(value.keywords)})"
    module, name = getattr(value, "__module__", None) or "", getattr(value, "__qualname__", "")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if module.partition(".")[0] not in ("jax", "jaxlib", "numpy", "ml_dtypes", "builtins") or found is not value:
        raise _NoKeyError(repr(value))
    return f"{module}.{name}"


def _write_other(value: Any) -> str:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        inside = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        return f"{type(value).__qualname__}({','.join(f'{name}={_write(item)}' for name, item in inside)})"
    if callable(value):
        return _write_function(value)
    text = repr(value)
    if _ADDRESS.search(text):
        raise _NoKeyError(text)
    return f"{type(value).__qualname__}:{text}"


_WRITERS: tuple[tuple[Any, Callable[[Any], str]], ...] = (
    ((bool, int, float, complex, str, bytes, type(None)), lambda value: f"{type(value).__name__}:{value!r}"),
    ((core.ClosedJaxpr, core.Jaxpr), _write_jaxpr),
    ((np.ndarray, np.generic, jax.Array), _write_array),
    (np.dtype, str),
    (enum.Enum, _write_enum),
    (PartitionSpec, _write_spec),
    (NamedSharding, _write_sharding),
    ((Mesh, AbstractMesh), _write_mesh),
    ((tuple, list), _write_many),
    ((set, frozenset), _write_set),
    (dict, _write_dict),
)
