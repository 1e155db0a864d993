"""Prices the tasks of a plan whole, and plays its program.

The prices of a search are those of blocks, since plans have them in common. What a compiler does across blocks, and
what a task takes to begin, is in whole tasks alone. Neither needs the actors: one runs at a time, or none.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from jax.sharding import AbstractMesh, PartitionSpec

from jaxquard.errors import PricingError
from jaxquard.ir.array_type import ArrayType
from jaxquard.ir.program import Call, Program
from jaxquard.planner.record.plan import Plan
from jaxquard.planner.search.live_pricing import abstract_mesh_of
from jaxquard.planner.search.problem import PlanProblem
from jaxquard.planner.step.apply_plan import AppliedStep, apply_plan
from jaxquard.pricing import Failure, FailureReason, Price, Pricer, ShardedProgram
from jaxquard.pricing.end_of_time import OutOfTimeError
from jaxquard.runtime.distributed import DistributedStep, StepOptions
from jaxquard.runtime.engine import Engine
from jaxquard.simulate.actor_link import ActorLinks
from jaxquard.simulate.play_program import play_program


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedPlan:
    """The time of a step, from its whole tasks.

    Attributes:
        num_priced: the tasks that were priced, where equal ones are one.
    """

    time_s: float
    num_priced: int


def price_tasks(
    problem: PlanProblem,
    plan: Plan,
    pricer: Pricer,
    *,
    links: ActorLinks,
    end_s: float = math.inf,
) -> PlayedPlan:
    """Prices the tasks of a plan, and plays its program with them.

    Args:
        pricer: of the plan's mesh.
        links: between the plan's actors.
        end_s: as in `Pricer.price_all`.

    Raises:
        OutOfTimeError: if a task has no price by then.
        PricingError: if a task has no price, or the program does not run.
    """
    applied = apply_plan(problem.step, problem.args, plan)
    program = _find_program(problem, applied)
    tasks = [_as_sharded(call) for call in program.calls]
    # They do not compete: the slow ones have all of their runs.
    prices = pricer.price_all(tasks, groups=range(len(tasks)), end_s=end_s)
    if any(isinstance(price, Failure) and price.reason is FailureReason.NO_TIME for price in prices):
        raise OutOfTimeError
    times_s = list(map(_time_s, prices))
    step_s = play_program(program, times_s, links=links, axis_sizes=plan.axes).step_time_s
    return PlayedPlan(time_s=step_s, num_priced=len(tasks))


@dataclass(frozen=True, slots=True)
class _AbsentActors:
    """The actors of a plan as far as their program goes."""

    num_actors: int
    abstract_mesh: AbstractMesh

    @property
    def engine(self) -> Engine:
        raise AssertionError("actors that are not here run nothing")


def _find_program(problem: PlanProblem, applied: AppliedStep) -> Program:
    options = StepOptions(in_shardings=applied.in_shardings, donate_argnums=applied.donate_argnums)
    actors = _AbsentActors(applied.num_actors, abstract_mesh_of(tuple(applied.axes.items())))
    return DistributedStep(applied.fn, mesh=actors, options=options, measure=False).program(*problem.args)


def _as_sharded(call: Call) -> ShardedProgram:
    return ShardedProgram(
        name=call.name,
        jaxpr=call.code,
        in_specs=_specs(call.inputs),
        out_specs=_specs(call.outputs),
        donated=call.donated,
    )


def _specs(types: Sequence[ArrayType]) -> tuple[PartitionSpec, ...]:
    return tuple(PartitionSpec(*(axes or None for axes in type_.spec)) for type_ in types)


def _time_s(price: Price | Failure) -> float:
    if isinstance(price, Failure):
        raise PricingError(str(price))
    return price.time_s
