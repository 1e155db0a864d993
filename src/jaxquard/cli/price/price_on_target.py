"""Prices one strategy of a step for a cluster."""

from dataclasses import dataclass, replace
from pathlib import Path

from jax.sharding import AbstractMesh

from jaxquard.cli.exit_codes import UsageError, print_message
from jaxquard.cli.options import choose_name
from jaxquard.cli.price.strategy import STRATEGIES, WITHIN_HOSTS
from jaxquard.cli.shard.find_step import NamedStep, find_step
from jaxquard.cli.shard.run_search import interruptible
from jaxquard.cli.shard.target_mesh import make_pricer, target_mesh
from jaxquard.cluster import Cluster
from jaxquard.errors import InfeasibleError
from jaxquard.intraop.plan.sharding_plan import load_sharding
from jaxquard.intraop.plan.volume import volume_baseline
from jaxquard.intraop.segments.analysis import analyse_step
from jaxquard.intraop.shardings.baselines import baselines
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.intraop.shardings.whole_step import write_whole_step
from jaxquard.intraop.step.traced_step import trace_step
from jaxquard.pricing import PriceCache, ShardedProgram, WalkedProgram
from jaxquard.pricing.target.compiled_program import CompiledProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedStep:
    """A step with its price on a cluster."""

    model: str
    strategy: str
    cluster: Cluster
    mesh: AbstractMesh
    device_kind: str
    walked: WalkedProgram
    compiled: CompiledProgram

    def check_memory(self) -> None:
        """Raises an InfeasibleError if it does not fit; it says by how much, and which part is how large."""
        missing = self.compiled.peak_bytes - self.cluster.memory.size_bytes
        if missing > 0:
            raise InfeasibleError(
                f"{self.model} with {self.strategy} takes {_gigabytes(self.compiled.peak_bytes)} on each of "
                f"{self.cluster.name}'s chips, which have {_gigabytes(self.cluster.memory.size_bytes)}: "
                f"{_gigabytes(missing)} too much. State and batch take {_gigabytes(self.compiled.argument_bytes)}, "
                f"activations and other temporaries {_gigabytes(self.compiled.temporary_bytes)}. Take a larger mesh, a "
                "smaller batch, or another --strategy."
            )


def _gigabytes(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.1f} GB"


def price_on_target(
    model: str,
    cluster: Cluster,
    *,
    strategy: str,
    sizes: tuple[int, ...] | None,
    batch_size: int | None,
    cache: PriceCache | None,
) -> PricedStep:
    """Compiles the step with a strategy for the cluster, and walks what the compiler made of it."""
    is_file = strategy.endswith(".json")
    if not is_file:
        strategy = choose_name(strategy, STRATEGIES, kind="strategy", hint="; or a plan's file that ends in .json")
    elif sizes is None:
        sizes = tuple(load_sharding(Path(strategy)).axes.values())
    mesh = target_mesh(cluster, sizes, by_level=strategy in WITHIN_HOSTS)
    with make_pricer(cluster, mesh, cache) as pricer, interruptible(cache):
        step = find_step(model, batch_size=batch_size, usual_batch_size=max(8, mesh.size))
        program = _write_program(step, strategy, mesh, is_file=is_file)
        print_message(f"compiling for {mesh.size} x {pricer.target.device_kind}")
        walked, compiled = pricer.walk(program)
        return PricedStep(
            model=step.name,
            strategy=strategy,
            cluster=cluster,
            mesh=mesh,
            device_kind=pricer.target.device_kind,
            walked=walked,
            compiled=compiled,
        )


def _write_program(step: NamedStep, strategy: str, mesh: AbstractMesh, *, is_file: bool) -> ShardedProgram:
    traced = trace_step(step.train_step, step.args)
    if is_file:
        plan = load_sharding(Path(strategy))
        if dict(plan.axes) != dict(mesh.shape):
            raise UsageError(f"{strategy} is for a mesh of {dict(plan.axes)}, but --mesh is {dict(mesh.shape)}.")
        programs = StepPrograms(plan.analyse(traced))
        assignment, storage = plan.assignment, plan.storage
    else:
        axes = {str(axis): size for axis, size in mesh.shape.items()}
        analysis = analyse_step(traced, axes=axes, every_combination=True)
        programs, name = StepPrograms(analysis), STRATEGIES[strategy]
        chosen = volume_baseline(programs) if name == "volume" else baselines(analysis)[name]
        assignment, storage = chosen.assignment, chosen.storage
    return replace(write_whole_step(programs, assignment, storage=storage), name=f"{step.name}, {strategy}")
