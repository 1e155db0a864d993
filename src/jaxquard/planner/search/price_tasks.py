"""Prices the tasks of a plan whole, and plays its program.

The prices of a search are those of blocks, since plans have them in common. What a compiler does across blocks, and
what a task takes to begin, is in whole tasks alone. Neither needs the actors: one runs at a time, or none.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from jax.sharding import AbstractMesh, PartitionSpec

from jaxquard.errors import PricingError
from jaxquard.ir.array_type import ArrayType
from jaxquard.ir.program import Call, Program, Run
from jaxquard.planner.record.plan import Plan
from jaxquard.planner.search.live_pricing import abstract_mesh_of
from jaxquard.planner.search.measured_host import MeasuredHost
from jaxquard.planner.search.problem import PlanProblem
from jaxquard.planner.search.shared_cores import find_shared_time
from jaxquard.planner.step.apply_plan import AppliedStep, apply_plan
from jaxquard.pricing import Failure, Price, Pricer, ShardedProgram
from jaxquard.runtime.distributed import DistributedStep, StepOptions
from jaxquard.runtime.engine import Engine
from jaxquard.simulate.actor_link import ActorLinks
from jaxquard.simulate.play_program import play_program


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedPlan:
    """The time of a step, from its whole tasks.

    Attributes:
        time_s: of the program, and the host's overhead.
        host_s: that overhead; 0 where there is none, or it is not known.
        num_tasks: that were priced; equal ones are one.
    """

    time_s: float
    host_s: float
    num_tasks: int


def price_tasks(
    problem: PlanProblem, plan: Plan, pricer: Pricer, *, links: ActorLinks, host: MeasuredHost | None = None
) -> PlayedPlan:
    """Prices the tasks of a plan, and plays its program with them.

    Args:
        pricer: of the plan's mesh.
        links: between the plan's actors.
        host: where the pricer measures them, if their devices are its cores.

    Raises:
        PricingError: if a task has no price.
    """
    applied = apply_plan(problem.step, problem.args, plan)
    program = _find_program(problem, applied)
    tasks = [_as_sharded(call) for call in program.calls]
    # They do not compete: the slow ones have all of their runs.
    prices = pricer.price_all(tasks, groups=range(len(tasks)))
    times_s = list(map(_time_s, prices))
    played = play_program(program, times_s, links=links, axis_sizes=plan.axes)
    if host is None:
        return PlayedPlan(time_s=played.step_time_s, host_s=0.0, num_tasks=len(tasks))
    host_s = host.price_overhead(problem, applied).time_s
    step_s = played.step_time_s
    if host.pricer_alone is not None and plan.num_actors > 1:
        pricer_alone = host.pricer_alone(abstract_mesh_of(tuple(plan.axes.items())))
        longest = _find_longest(program, times_s)
        alone_share = _find_alone_share(tasks[longest], times_s[longest], pricer_alone)
        step_s = find_shared_time(played, alone_share=alone_share)
    return PlayedPlan(time_s=step_s + host_s, host_s=host_s, num_tasks=len(tasks))


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


def _find_longest(program: Program, times_s: Sequence[float]) -> int:
    """Returns the position of the task that takes the most time of a step, all of its runs together."""
    instructions = (one for actor in program.actors for one in actor.instructions)
    counts = Counter(one.call for one in instructions if isinstance(one, Run))
    return max(counts, key=lambda call: counts[call] * times_s[call])


def _find_alone_share(task: ShardedProgram, time_s: float, pricer_alone: Pricer) -> float:
    """Returns what a task takes on an actor that runs alone, of its price while all run; 1 if it does not run so."""
    price = pricer_alone.price_all([task])[0]
    return 1.0 if isinstance(price, Failure) else min(1.0, price.time_s / time_s)


def _time_s(price: Price | Failure) -> float:
    if isinstance(price, Failure):
        raise PricingError(str(price))
    return price.time_s
