"""Prices of sharded programs: seconds and bytes, with their provenance.

In: programs with shardings on a mesh (`ShardedProgram`). Out: a `Price` or a `Failure` for each, from a `Pricer`.
`program` prepares, `compile` compiles, `measure` runs, `communication` reads what was compiled, `target` asks the
compiler of a cluster that is not here, `mock_gpu` has one GPU for many. Nothing here knows of segments or plans.
"""

from typing import TYPE_CHECKING

from jaxquard._lazy_exports import export_lazily

if TYPE_CHECKING:
    from jaxquard.pricing.cache import PriceCache as PriceCache
    from jaxquard.pricing.communication.collectives import CollectiveInstruction as CollectiveInstruction
    from jaxquard.pricing.communication.collectives import collectives as collectives
    from jaxquard.pricing.measure.machine.steady_cpu import make_cpu_steady as make_cpu_steady
    from jaxquard.pricing.measure.measured_pricer import MeasuredPricer as MeasuredPricer
    from jaxquard.pricing.measure.outcomes import TimeBreakdown as TimeBreakdown
    from jaxquard.pricing.mock_gpu.mock_gpu_pricer import MockGpuPricer as MockGpuPricer
    from jaxquard.pricing.price import Failure as Failure
    from jaxquard.pricing.price import FailureReason as FailureReason
    from jaxquard.pricing.price import LoopPricer as LoopPricer
    from jaxquard.pricing.price import OnProgress as OnProgress
    from jaxquard.pricing.price import Price as Price
    from jaxquard.pricing.price import Pricer as Pricer
    from jaxquard.pricing.price import Progress as Progress
    from jaxquard.pricing.price import Provenance as Provenance
    from jaxquard.pricing.program.sharded_program import ShardedProgram as ShardedProgram
    from jaxquard.pricing.program.sharded_program import reshard_program as reshard_program
    from jaxquard.pricing.target.compile_pricer import CompilePricer as CompilePricer
    from jaxquard.pricing.target.walk_schedule import WalkedCollective as WalkedCollective
    from jaxquard.pricing.target.walk_schedule import WalkedProgram as WalkedProgram
else:
    __all__ = export_lazily(
        __name__,
        {
            "cache": ["PriceCache"],
            "communication.collectives": ["CollectiveInstruction", "collectives"],
            "measure.measured_pricer": ["MeasuredPricer"],
            "measure.outcomes": ["TimeBreakdown"],
            "measure.machine.steady_cpu": ["make_cpu_steady"],
            "mock_gpu.mock_gpu_pricer": ["MockGpuPricer"],
            "price": [
                "Failure",
                "FailureReason",
                "LoopPricer",
                "OnProgress",
                "Price",
                "Pricer",
                "Progress",
                "Provenance",
            ],
            "program.sharded_program": ["ShardedProgram", "reshard_program"],
            "target.compile_pricer": ["CompilePricer"],
            "target.walk_schedule": ["WalkedCollective", "WalkedProgram"],
        },
    )
