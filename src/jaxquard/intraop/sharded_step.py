"""A step as one jitted program with shardings."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from jaxquard.intraop.analyse import Analysis
from jaxquard.intraop.layouts import Assignment, Storage
from jaxquard.intraop.step_parts import stacked_specs
from jaxquard.intraop.traced_step import TracedStep
from jaxquard.intraop.whole_step import whole_step
from jaxquard.intraop.write_program import write_step
from jaxquard.pricing.insert_constraints import insert_constraints
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
        self.program: ShardedProgram = write_step(analysis, assignment, storage=storage)
        closed: Any = insert_constraints(self.program.jaxpr, self.program.constraints, mesh=mesh)
        specs = [*stacked_specs(self.step.inputs, self.program.in_specs), *self.program.in_specs[self.step.num_args :]]
        self._shardings = [NamedSharding(mesh, spec) for spec in specs]
        # For results that replace arguments, those.
        replaced = {
            self.step.outputs[result].leaf: part.leaf
            for part, result in zip(self.step.inputs, self.step.result_of_input, strict=False)
            if result is not None
        }
        num_results = range(self.step.out_tree.num_leaves)
        self._jitted = jax.jit(
            whole_step(self.step, closed, in_specs=self.program.in_specs, mesh=mesh),
            in_shardings=self._shardings,
            out_shardings=[self._shardings[replaced[leaf]] if leaf in replaced else None for leaf in num_results],
            donate_argnums=tuple(sorted(replaced.values())) if donate else (),
        )

    def __call__(self, *args: Any) -> Any:
        flat, tree = jax.tree.flatten(args)
        if tree != self.step.in_tree:
            raise TypeError(f"the step was planned for arguments {self.step.in_tree}, but found {tree}.")
        placed = jax.device_put([*flat, *self.step.constants], self._shardings)
        return jax.tree.unflatten(self.step.out_tree, self._jitted(*placed))
