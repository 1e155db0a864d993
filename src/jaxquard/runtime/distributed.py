"""`DistributedStep`: returned by `RemoteMesh.distributed`, and used as the result of `jax.jit` is.

A call flattens its arguments, finds the program that was made for their types (or traces, plans
and compiles one), gives every actor its inputs and returns handles of the results at once.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import jax
import numpy as np

from jaxquard import _jax_compat
from jaxquard.errors import MeshError
from jaxquard.ir.array_leaves import advice_for, check_results
from jaxquard.ir.program import Program
from jaxquard.ir.timeline import Timeline
from jaxquard.ir.typed_shardings import explicit_axes, restrict_axes
from jaxquard.pipeline.plan_step import PassRecord, PlannedStep, Request, plan_step
from jaxquard.pipeline.specs.infer_specs import Spec
from jaxquard.runtime.bind_arguments import ArgumentBinder
from jaxquard.runtime.call_leaves import flat_specs, pair_results
from jaxquard.runtime.engine import ActorMesh, Loaded, Running
from jaxquard.runtime.initial_state import trace_on_mesh
from jaxquard.runtime.remote_array import RemoteArray
from jaxquard.runtime.typed_leaves import argument_type, own_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOptions:
    """The options of a distributed step (see `RemoteMesh.distributed`)."""

    in_shardings: Any = None
    out_shardings: Any = None
    donate_argnums: tuple[int, ...] = ()
    donate_argnames: tuple[str, ...] = ()
    static_argnums: tuple[int, ...] = ()
    static_argnames: tuple[str, ...] = ()
    progress: Callable[[int, int, str], None] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredStep:
    """A step as a program, before it is compiled.

    Attributes:
        program: the instruction list of every actor.
        passes: each pass with its text and its time.
    """

    program: Program
    passes: tuple[PassRecord, ...]

    def as_text(self, pass_name: str | None = None) -> str:
        """Returns the text of the program, or of the result of a pass."""
        if pass_name is None:
            return str(self.program)
        for record in self.passes:
            if record.name == pass_name:
                return record.text
        names = ", ".join(record.name for record in self.passes)
        raise KeyError(f"there is no pass {pass_name!r}; the passes are {names}.")

    def __str__(self) -> str:
        return self.as_text()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traced:
    """A step traced for one signature."""

    planned: PlannedStep
    out_tree: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """A step compiled for one signature."""

    loaded: Loaded
    binder: ArgumentBinder
    out_tree: Any


class DistributedStep:
    """A training step that runs on the actors of a mesh."""

    def __init__(self, fn: Callable[..., Any], *, mesh: ActorMesh, options: StepOptions, measure: bool) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.measure = measure
        self._fn, self._mesh, self._options = fn, mesh, options
        self._ready: dict[Any, _Ready] = {}
        self._last: Running | None = None
        self._parameters = _parameters(fn, keyword_only=False)
        self._static = _positions(fn, options.static_argnums, options.static_argnames)
        self._donated = _positions(fn, options.donate_argnums, options.donate_argnames)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self._split(args, kwargs)
        leaves, tree = jax.tree.flatten(call.dynamic)
        key = (tree, call.static, self._signatures(leaves, call.dynamic), _jax_compat.trace_context())
        ready = self._ready.get(key)
        if ready is None:
            ready = self._ready[key] = self._compile(call, leaves, tree)
        inputs = ready.binder.bind(leaves)
        run = self._mesh.engine.execute(ready.loaded, inputs, measure=self.measure)
        self._last = run if self.measure else None
        return jax.tree.unflatten(ready.out_tree, run.results())

    def lower(self, *args: Any, **kwargs: Any) -> LoweredStep:
        """Plans the program for these arguments (arrays, or `jax.ShapeDtypeStruct`s), with every pass's text."""
        call = self._split(args, kwargs)
        leaves, tree = jax.tree.flatten(call.dynamic)
        planned = self._trace(call, leaves, tree, keep_text=True).planned
        return LoweredStep(program=planned.program, passes=planned.records)

    def program(self, *args: Any, **kwargs: Any) -> Program:
        """Plans the program for these arguments, as `lower` does, without texts."""
        call = self._split(args, kwargs)
        leaves, tree = jax.tree.flatten(call.dynamic)
        return self._trace(call, leaves, tree, keep_text=False).planned.program

    def timeline(self) -> Timeline:
        """Waits for the last call, and returns when each of its tasks and transfers ran."""
        if self._last is None:
            raise MeshError(
                "no call of this step was measured. Make it with distributed(..., measure=True), or set "
                "step.measure = True, and call it."
            )
        return self._last.timeline()

    def __repr__(self) -> str:
        return f"DistributedStep({getattr(self, '__name__', self._fn)!s} on {self._mesh!r})"

    def _split(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> "_Call":
        args, kwargs = self._by_position(args, kwargs)
        static = tuple((p, args[p]) for p in self._static.numbers if p < len(args))
        static_names = tuple((n, kwargs[n]) for n in sorted(kwargs) if n in self._static.names)
        positions = [p for p in range(len(args)) if p not in self._static.numbers]
        names = [n for n in sorted(kwargs) if n not in self._static.names]
        dynamic = [*(args[p] for p in positions), *(kwargs[n] for n in names)]
        donated = [
            *(p in self._donated.numbers for p in positions),
            *(n in self._donated.names for n in names),
        ]
        for _, value in (*static, *static_names):
            try:
                hash(value)
            except TypeError as error:
                raise TypeError(
                    f"a static argument must be hashable, but {type(value).__name__} is not. "
                    "Make it hashable, or pass it as a dynamic argument."
                ) from error
        return _Call(
            dynamic=dynamic,
            static=(static, static_names, tuple(positions), tuple(names)),
            donated=tuple(donated),
        )

    def _by_position(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Turns arguments given by name into positional ones, as far as they follow those given by position."""
        kwargs = dict(kwargs)
        for name in self._parameters[len(args) :]:
            if name not in kwargs:
                break
            args = (*args, kwargs.pop(name))
        left = [name for name in kwargs if name not in self._static.names]
        if left and isinstance(self._options.in_shardings, tuple | list):
            raise TypeError(
                f"in_shardings is given for each argument by position, but {left[0]!r} was passed by name. "
                "Pass it by position."
            )
        return args, kwargs

    def _compile(self, call: "_Call", leaves: list[Any], tree: Any) -> _Ready:
        traced = self._trace(call, leaves, tree, keep_text=False)
        planned = traced.planned
        loaded = self._mesh.engine.load(planned.program, on_progress=self._options.progress)
        paths = jax.tree_util.tree_leaves_with_path(call.dynamic)
        names = [jax.tree_util.keystr(path) for path, _ in paths]
        binder = ArgumentBinder(loaded, arg_parts=planned.arg_parts, names=names, owner=self._mesh.engine.token)
        return _Ready(loaded=loaded, binder=binder, out_tree=traced.out_tree)

    def _signatures(self, leaves: list[Any], args: Any) -> tuple[Any, ...]:
        """Returns the types of arguments as a key; a sharding is part of one only on explicit axes."""
        explicit = explicit_axes(self._mesh.abstract_mesh)
        signatures = tuple(map(_signature, leaves, repeat(args)))
        if not explicit:
            return signatures
        return signatures, tuple(restrict_axes(own_spec(leaf), explicit) for leaf in leaves)

    def _trace(self, call: "_Call", leaves: list[Any], tree: Any, *, keep_text: bool) -> _Traced:
        types = [_abstract(leaf, call.dynamic) for leaf in leaves]
        arg_specs = self._arg_specs(call, jax.tree.unflatten(tree, types))
        mesh = self._mesh.abstract_mesh
        if explicit_axes(mesh):
            types = [argument_type(leaf, spec=spec, mesh=mesh) for leaf, spec in zip(leaves, arg_specs, strict=True)]
        step, shapes = trace_on_mesh(
            lambda *flat: check_results(self._fn_of(call)(jax.tree.unflatten(tree, flat)), "a distributed step"),
            types,
            mesh=self._mesh,
        )
        request = self._request(call, jax.tree.unflatten(tree, types), arg_specs, shapes)
        return _Traced(
            planned=plan_step(step, request=request, keep_text=keep_text), out_tree=jax.tree.structure(shapes)
        )

    def _fn_of(self, call: "_Call") -> Callable[[list[Any]], Any]:
        """Returns the user's function of its dynamic arguments alone."""
        static, static_names, positions, names = call.static

        def run(dynamic: list[Any]) -> Any:
            args: dict[int, Any] = {**dict(static), **dict(zip(positions, dynamic, strict=False))}
            kwargs = {**dict(static_names), **dict(zip(names, dynamic[len(positions) :], strict=True))}
            return self._fn(*(args[position] for position in sorted(args)), **kwargs)

        return run

    def _arg_specs(self, call: "_Call", args: list[Any]) -> list[Spec | None]:
        """Returns the spec that the user gives each flat argument; None where there is none."""
        shardings = self._options.in_shardings
        if isinstance(shardings, list | tuple) and not isinstance(shardings, jax.sharding.PartitionSpec):
            positions = call.static[2]
            shardings = [shardings[p] for p in positions] if len(shardings) > len(args) else list(shardings)
            shardings += [None] * (len(args) - len(shardings))
        return flat_specs(shardings, args, mesh=self._mesh.abstract_mesh, what="in_shardings")

    def _request(self, call: "_Call", args: list[Any], arg_specs: list[Spec | None], shapes: Any) -> Request:
        mesh = self._mesh.abstract_mesh
        pairs = pair_results(args, shapes, donated=call.donated)
        given = flat_specs(self._options.out_shardings, shapes, mesh=mesh, what="out_shardings")
        result_specs = list(given)
        for arg, result in enumerate(pairs):
            if result is not None and result_specs[result] is None:
                result_specs[result] = arg_specs[arg]
        counts = [len(jax.tree.leaves(arg)) for arg in args]
        donated = [d for d, count in zip(call.donated, counts, strict=True) for _ in range(count)]
        return Request(
            num_actors=self._mesh.num_actors,
            donated_args=tuple(arg for arg, is_donated in enumerate(donated) if is_donated),
            result_of_arg=tuple(pairs),
            arg_specs=tuple(arg_specs),
            result_specs=tuple(result_specs),
            mesh=mesh,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """The arguments of one call: dynamic ones, and everything else as a key."""

    dynamic: list[Any]
    static: Any
    donated: tuple[bool, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arguments:
    """Some arguments of a function, by position and by name."""

    numbers: frozenset[int]
    names: frozenset[str]


def _parameters(fn: Callable[..., Any], *, keyword_only: bool) -> list[str]:
    """The names of a function's parameters; none if it has no signature."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = [inspect.Parameter.POSITIONAL_OR_KEYWORD]
    if keyword_only:
        kinds += [inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_POSITIONAL]
    return [parameter.name for parameter in parameters if parameter.kind in kinds]


def _positions(fn: Callable[..., Any], numbers: Sequence[int], names: Sequence[str]) -> _Arguments:
    parameters = _parameters(fn, keyword_only=True)
    by_number = {number % len(parameters) if number < 0 and parameters else number for number in numbers}
    by_number |= {parameters.index(name) for name in names if name in parameters}
    by_name = set(names) | {parameters[number] for number in by_number if number < len(parameters)}
    return _Arguments(numbers=frozenset(by_number), names=frozenset(by_name))


def _signature(leaf: Any, args: Any) -> Any:
    if isinstance(leaf, RemoteArray):
        return leaf.type.shape, leaf.type.dtype, False
    if isinstance(leaf, bool | int | float | complex):
        return type(leaf)
    _check_leaf(leaf, args)
    return leaf.shape, str(leaf.dtype), getattr(leaf, "weak_type", False)


def _abstract(leaf: Any, args: Any) -> Any:
    if isinstance(leaf, RemoteArray):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return leaf
    _check_leaf(leaf, args)
    aval = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _check_leaf(leaf: Any, args: Any) -> None:
    if isinstance(leaf, jax.core.Tracer):
        raise TypeError(
            "a distributed step was called under a JAX transformation (jit, grad, vmap). It is the outermost "
            "function: call it with arrays."
        )
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float | complex):
        cure = advice_for(leaf, args, otherwise="Pass it through static_argnums, or turn it into an array.")
        raise TypeError(
            f"a distributed step takes arrays, RemoteArrays and numbers; found {leaf!r} of type {type(leaf).__name__}. "
            + cure
        )
