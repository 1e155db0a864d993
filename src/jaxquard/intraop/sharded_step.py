"""A step as one jitted program with shardings."""

import inspect
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from jaxquard._jax_compat import without_mesh
from jaxquard.errors import ShardingError
from jaxquard.intraop.analyse import Analysis
from jaxquard.intraop.layouts import Assignment, Storage
from jaxquard.intraop.own_buffers import with_own_buffers, without_repeats
from jaxquard.intraop.step_fingerprint import type_text
from jaxquard.intraop.traced_step import TracedStep, is_weak
from jaxquard.intraop.whole_step import write_whole_step
from jaxquard.pricing.compiler_options import jit_on_mesh
from jaxquard.pricing.insert_constraints import insert_constraints
from jaxquard.pricing.lower_program import usable_donations
from jaxquard.pricing.program import ShardedProgram


class ShardedStep:
    """Calls the user's step on a mesh, its state and all that follows from it sharded as planned.

    It is made for arguments of the types that it was planned for, and takes the place of the step: same arguments,
    same results. The state that is passed in is donated: go on with the one that comes back.
    """

    def __init__(
        self,
        step: Callable[..., Any],
        *,
        make: Callable[[Sequence[Any]], "CompiledStep"],
        check: Callable[[Sequence[Any]], None],
    ):
        """Made by `ShardingPlan.apply`.

        Args:
            step: the user's.
            make: compiles it for arguments of the first call.
            check: refuses arguments whose weakly typed leaves are others than planned, if that matters; asked once for
                every set of such leaves.
        """
        self._step = step
        self._make = make
        self._check = check
        self._compiled: CompiledStep | None = None
        self._checked: set[tuple[bool, ...]] = set()

    def __call__(self, *args: Any, **named: Any) -> Any:
        if named:
            args = _in_order(self._step, args, named)
        if self._compiled is None:
            self._compiled = self._make(args)
        weak = tuple(map(is_weak, jax.tree.leaves(args)))
        if weak not in self._checked:
            self._compiled.check(args)
            self._check(args)
            self._checked.add(weak)
        return self._compiled(*args)


def _in_order(step: Callable[..., Any], args: Sequence[Any], named: dict[str, Any]) -> tuple[Any, ...]:
    """Arguments by name as arguments by position, which is how a step is planned."""
    bound = inspect.signature(step).bind(*args, **named)
    if bound.kwargs:
        name = next(iter(bound.kwargs))
        raise ShardingError(
            f"a step is planned for arguments by position, and {name!r} has none here. Pass what stands before it too, "
            "or bind it with functools.partial before the search."
        )
    return bound.args


class CompiledStep:
    """A traced step with its program on a mesh."""

    def __init__(
        self,
        analysis: Analysis,
        assignment: Assignment,
        *,
        mesh: Mesh,
        storage: Storage = Storage.AS_USED,
        donate: bool = True,
    ):
        self.step: TracedStep = analysis.graph.step
        self.program: ShardedProgram = write_whole_step(analysis, assignment, storage=storage)
        closed: Any = insert_constraints(self.program.jaxpr, self.program.constraints, mesh=mesh)
        self._shardings = [NamedSharding(mesh, spec) for spec in self.program.in_specs]
        self._donated = usable_donations(self.program) if donate else ()
        self._constants: list[Any] | None = None
        self._made: dict[int, weakref.ref[Any]] = {}
        self._jitted = jit_on_mesh(
            closed,
            mesh=mesh,
            in_shardings=tuple(self._shardings),
            out_shardings=[None if spec is None else NamedSharding(mesh, spec) for spec in self.program.out_specs],
            donate_argnums=self._donated,
        )

    def __call__(self, *args: Any) -> Any:
        self.check(args)
        flat = without_repeats(jax.tree.leaves(args), others=self.step.constants)
        with without_mesh():
            placed = [*jax.device_put(flat, self._shardings[: len(flat)]), *self._placed_constants()]
            results = self._jitted(*with_own_buffers(placed, places=self._foreign(flat)))
        self._made = {id(leaf): weakref.ref(leaf) for leaf in results}
        return jax.tree.unflatten(self.step.out_tree, results)

    def _placed_constants(self) -> list[Any]:
        """What the step closes over, placed once; but inside another trace it is part of that."""
        if self._constants is not None:
            return self._constants
        shardings = self._shardings[len(self._shardings) - len(self.step.constants) :]
        placed = jax.device_put(list(self.step.constants), shardings)
        if not any(isinstance(constant, jax.core.Tracer) for constant in placed):
            self._constants = placed
        return placed

    def _foreign(self, flat: Sequence[Any]) -> list[int]:
        """Places of leaves that the last call did not make, so that they may share buffers; none if none is donated."""
        found = [
            place for place, leaf in enumerate(flat) if (made := self._made.get(id(leaf))) is None or made() is not leaf
        ]
        return [] if set(self._donated).isdisjoint(found) else found

    def check(self, args: Sequence[Any]) -> None:
        """Refuses arguments of another form or other types.

        Raises:
            TypeError: if they are put together in another way.
            ShardingError: if a leaf has another shape or dtype.
        """
        flat, tree = jax.tree.flatten(tuple(args))
        if tree != self.step.in_tree:
            raise TypeError(f"the step was planned for arguments {self.step.in_tree}, but found {tree}.")
        self._check_types(flat)

    def _check_types(self, flat: Sequence[Any]) -> None:
        """The program is for these types alone: a mean over a batch has its size in it."""
        for place, (leaf, planned) in enumerate(zip(flat, self.step.arg_types, strict=True)):
            found = leaf if isinstance(leaf, jax.Array) else jax.typeof(leaf)
            if (found.shape, found.dtype) != (planned.shape, planned.dtype):
                name, types = self.step.arg_names[place], (type_text(planned), type_text(found))
                raise ShardingError(
                    f"the plan was made for another step: {name} was {types[0]} and is {types[1]}. Search again for "
                    "this one."
                )
