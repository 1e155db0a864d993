"""A step as one jitted program with shardings."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from jaxquard._jax_compat import without_mesh
from jaxquard.errors import ShardingError
from jaxquard.intraop.plan.call_arguments import LeafPlacer, with_own_buffers, without_repeats
from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.shardings.layouts import Assignment, Storage
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.intraop.shardings.whole_step import replaced_leaves, write_whole_step
from jaxquard.intraop.step.traced_step import TracedStep
from jaxquard.pricing.program.compiler_options import jit_on_mesh
from jaxquard.pricing.program.insert_constraints import insert_constraints
from jaxquard.pricing.program.lower_program import program_donations
from jaxquard.pricing.program.sharded_program import ShardedProgram


class ShardedStep:
    """The user's step on a mesh, with its state and all that follows from it sharded as planned.

    It is called as the step is: same arguments, same results. It is compiled for arguments of the planned types. It
    donates the state that is passed in: go on with the one that comes back.
    """

    def __init__(self, step: Callable[..., Any], *, make: Callable[[Sequence[Any]], "CompiledStep"]):
        """Made by `ShardingPlan.apply`.

        Args:
            step: the user's.
            make: compiles it for arguments of the first call.
        """
        self._step, self._make = step, make
        self._compiled: CompiledStep | None = None

    def __call__(self, *args: Any, **named: Any) -> Any:
        if named:
            args = _in_order(self._step, args, named)
        if self._compiled is None:
            self._compiled = self._make(args)
        return self._compiled(*args)


def _in_order(step: Callable[..., Any], args: Sequence[Any], named: dict[str, Any]) -> tuple[Any, ...]:
    """Returns arguments by name as arguments by position, which is how a step is planned."""
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
        check: Callable[[Sequence[Any]], None] = lambda args: None,
    ):
        """A step under a plan.

        Args:
            donate: donates the state's buffers.
            check: refuses arguments whose weakly typed leaves are others than planned, if that matters; called once
                for every set of such leaves.
        """
        self.step: TracedStep = analysis.step
        self.program: ShardedProgram = write_whole_step(StepPrograms(analysis), assignment, storage=storage)
        closed: Any = insert_constraints(self.program.jaxpr, self.program.constraints, mesh=mesh)
        shardings = [NamedSharding(mesh, spec) for spec in self.program.in_specs]
        num_leaves = len(shardings) - len(self.step.constants)
        self._constants: list[Any] | None = None
        self._constant_shardings = shardings[num_leaves:]
        self._constant_ids = frozenset(map(id, self.step.constants))
        self._donated = frozenset(program_donations(self.program) if donate else ())
        self._placer = LeafPlacer(
            self.step,
            shardings[:num_leaves],
            donated=self._donated,
            results={place: number for number, place in replaced_leaves(self.step).items()},
        )
        self._check = check
        self._checked: set[tuple[bool, ...]] = set()
        self._jitted = jit_on_mesh(
            closed,
            mesh=mesh,
            in_shardings=tuple(shardings),
            out_shardings=[None if spec is None else NamedSharding(mesh, spec) for spec in self.program.out_specs],
            donate_argnums=tuple(sorted(self._donated)),
        )

    def __call__(self, *args: Any) -> Any:
        """Runs the step.

        Raises:
            TypeError: if the arguments are put together in another way than planned.
            ShardingError: if a leaf has another shape or dtype.
        """
        leaves, tree = jax.tree.flatten(args)
        if tree != self.step.in_tree:
            raise TypeError(f"the step was planned for arguments {self.step.in_tree}, but found {tree}.")
        new = self._placer.new_leaves(leaves)
        if new:
            self._look_at(args, leaves, new)
        own = without_repeats(leaves, others=self._constant_ids)
        with without_mesh():
            constants = self._placed_constants()
            placed = self._place(own, new, constants) if new else own
            results = self._jitted(*placed, *constants)
        self._placer.note_results(results)
        return jax.tree.unflatten(self.step.out_tree, results)

    def _look_at(self, args: Sequence[Any], leaves: Sequence[Any], places: Sequence[int]) -> None:
        """Checks leaves that are new at their places."""
        weak = self._placer.check(leaves, places)
        if weak not in self._checked:
            self._check(args)
            self._checked.add(weak)

    def _place(self, leaves: Sequence[Any], new: Sequence[int], constants: Sequence[Any]) -> list[Any]:
        """Returns all leaves, the new ones in their places, and donated ones in buffers of their own."""
        placed = self._placer.place(leaves, new)
        if self._donated.isdisjoint(new):
            return placed
        return with_own_buffers([*placed, *constants], places=self._placer.foreign_leaves(leaves))[: len(placed)]

    def _placed_constants(self) -> list[Any]:
        """Returns the arrays that the step closes over, placed once; inside another trace they are part of that."""
        if self._constants is not None:
            return self._constants
        placed = jax.device_put(list(self.step.constants), self._constant_shardings)
        if not any(isinstance(constant, jax.core.Tracer) for constant in placed):
            self._constants = placed
        return placed
