"""A step as one jitted program with shardings."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core
from jax.sharding import Mesh, NamedSharding

from jaxquard.errors import ShardingError
from jaxquard.intraop.analyse import Analysis
from jaxquard.intraop.layouts import Assignment, Storage
from jaxquard.intraop.step_fingerprint import type_text
from jaxquard.intraop.traced_step import TracedStep
from jaxquard.intraop.whole_step import write_whole_step
from jaxquard.pricing.insert_constraints import insert_constraints
from jaxquard.pricing.lower_program import usable_donations
from jaxquard.pricing.program import ShardedProgram


class ShardedStep:
    """Calls the user's step on a mesh, its state and all that follows from it sharded as planned.

    It is made for arguments of the types that it was planned for, and takes the place of the step: same arguments,
    same results. The state that is passed in is donated: go on with the one that comes back.
    """

    def __init__(self, make: Callable[[Sequence[Any]], "CompiledStep"]):
        self._make = make
        self._compiled: CompiledStep | None = None

    def __call__(self, *args: Any) -> Any:
        if self._compiled is None:
            self._compiled = self._make(args)
        return self._compiled(*args)


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
        self._jitted = jax.jit(
            core.jaxpr_as_fun(closed),
            in_shardings=tuple(self._shardings),
            out_shardings=[None if spec is None else NamedSharding(mesh, spec) for spec in self.program.out_specs],
            donate_argnums=usable_donations(self.program) if donate else (),
        )

    def __call__(self, *args: Any) -> Any:
        flat, tree = jax.tree.flatten(args)
        if tree != self.step.in_tree:
            raise TypeError(f"the step was planned for arguments {self.step.in_tree}, but found {tree}.")
        self._check_types(flat)
        placed = jax.device_put([*flat, *self.step.constants], self._shardings)
        return jax.tree.unflatten(self.step.out_tree, self._jitted(*placed))

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
