"""State that is built on the actors, each its own part, once a step says where it belongs.

`RemoteMesh.init` only traces. The arrays that it returns are placed when the first distributed
step takes them: then one small program runs, in which every actor computes just the leaves, or
the parts of stacked leaves, that the step wants there. Read before that, a leaf is computed whole
on the first actor.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
from jax.sharding import AbstractMesh

from jaxquard import _jax_compat
from jaxquard.errors import ShardingError
from jaxquard.ir.array_leaves import check_results
from jaxquard.ir.array_type import ArrayType
from jaxquard.ir.jaxpr_tools import with_constants_as_inputs
from jaxquard.ir.step import Step
from jaxquard.ir.typed_shardings import type_axes, typed_context
from jaxquard.pipeline.plan_init import Wanted, plan_init
from jaxquard.runtime.engine import ActorMesh
from jaxquard.runtime.remote_array import RemoteArray, RemotePart
from jaxquard.runtime.typed_leaves import argument_type, type_on


def trace_on_mesh(fn: Callable[..., Any], leaves: Sequence[Any], *, mesh: ActorMesh) -> tuple[Step, Any]:
    """Traces a function of flat arrays, or of their types, under the axes of the actors' meshes.

    Returns:
        The step, with its arguments and results whole, and the pytree of its result, with shapes as leaves.
    """
    closed, shapes = _trace(fn, leaves, mesh.abstract_mesh)
    jaxpr, constants = with_constants_as_inputs(closed)
    step = Step(
        jaxpr=jaxpr,
        constants=constants,
        arg_parts=((),) * len(leaves),
        result_parts=((),) * len(jaxpr.outvars),
    )
    return step, shapes


def _trace(fn: Callable[..., Any], leaves: Sequence[Any], mesh: AbstractMesh) -> Any:
    """Traces under a mesh; if the function names a mesh of the same axes itself, that one means this one.

    Raises:
        ShardingError: if it names a mesh of other axes.
    """
    theirs = None
    for around in (mesh, *_jax_compat.meshes_of_other_devices(mesh)):
        types = [type_on(leaf, around) for leaf in leaves]
        try:
            with jax.sharding.use_abstract_mesh(around):
                return jax.make_jaxpr(fn, return_shape=True)(*types)
        except ValueError as error:
            theirs = _jax_compat.names_another_mesh(error)
            if theirs is None:
                raise
    raise ShardingError(
        f"a jax.shard_map in the step is given {theirs}, but the actors' mesh is {_describe(mesh)}. Give it a mesh "
        "with the names, sizes and types of the actors' axes, of any devices, or the RemoteMesh those of this one."
    )


def _describe(mesh: AbstractMesh) -> str:
    axes = ", ".join(f"{name!r}: {size}" for name, size in mesh.shape.items())
    return f"{axes}, axis_types=({', '.join(kind.name for kind in mesh.axis_types)})"


class ArraySource(Protocol):
    """Makes leaves of state once it is known where they belong."""

    mesh: ActorMesh

    def build(self, wanted: Sequence[Wanted]) -> None:
        """Makes leaves where they are wanted, and puts them into their `InitialArray`s."""
        ...


class Initialisation:
    """A traced function that makes state."""

    def __init__(self, *, step: Step, args: Sequence[Any], tree: Any, mesh: ActorMesh) -> None:
        self.step, self.args, self.mesh = step, args, mesh
        self._tree = tree
        self._arrays = tuple(
            InitialArray(source=self, number=number, aval=atom.aval) for number, atom in enumerate(step.jaxpr.outvars)
        )

    @classmethod
    def trace(cls, fn: Callable[..., Any], args: tuple[Any, ...], *, mesh: ActorMesh) -> "Initialisation":
        flat, tree = jax.tree.flatten(args)
        types = [argument_type(leaf, spec=None, mesh=mesh.abstract_mesh) for leaf in flat]
        step, shapes = trace_on_mesh(
            lambda *leaves: check_results(fn(*jax.tree.unflatten(tree, leaves)), "the function of RemoteMesh.init"),
            types,
            mesh=mesh,
        )
        return cls(step=step, args=flat, tree=jax.tree.structure(shapes), mesh=mesh)

    def arrays(self) -> Any:
        return jax.tree.unflatten(self._tree, self._arrays)

    def build(self, wanted: Sequence[Wanted]) -> None:
        """Computes leaves where they are wanted."""
        with typed_context(self.mesh.abstract_mesh):
            program = plan_init(self.step, wanted=wanted, num_actors=self.mesh.num_actors)
        loaded = self.mesh.engine.load(program)
        inputs = [
            [
                loaded.place(self.args[entry.arg], actor=actor, number=number)
                for number, entry in enumerate(actor_program.inputs)
            ]
            for actor, actor_program in enumerate(program.actors)
        ]
        results = self.mesh.engine.execute(loaded, inputs).results()
        for request, result in zip(wanted, results, strict=True):
            self._arrays[request.result].put(result.parts)


class InitialArray(RemoteArray):
    """A leaf of state that may not have been computed yet."""

    __slots__ = ("_number", "_placed", "_source")

    def __init__(self, *, source: ArraySource, number: int, aval: Any) -> None:
        self._source, self._number = source, number
        self._placed: tuple[RemotePart, ...] | None = None
        self.type = ArrayType(dtype=str(aval.dtype), shape=tuple(aval.shape), spec=type_axes(aval))

    @property
    def source(self) -> ArraySource:
        return self._source

    @property
    def number(self) -> int:
        return self._number

    @property
    def is_placed(self) -> bool:
        return self._placed is not None

    def put(self, parts: tuple[RemotePart, ...]) -> None:
        self._placed = parts

    @property
    def parts(self) -> tuple[RemotePart, ...]:  # type: ignore[override]
        if self._placed is None:
            whole = Wanted(result=self._number, sizes=(), actors=((0,),), spec=())
            self._source.build([whole])
        assert self._placed is not None
        return self._placed

    def is_deleted(self) -> bool:
        return self.is_placed and super().is_deleted()

    def __repr__(self) -> str:
        return super().__repr__() if self.is_placed else f"RemoteArray({self.type}, not placed yet)"
