"""Prices of sharded programs: seconds and bytes, with their provenance.

In: programs with shardings on a mesh (`ShardedProgram`). Out: a `Price` or a `Failure` for each, from a `Pricer`.
`program` prepares, `compile` compiles, `measure` runs, `communication` reads what was compiled, `target` asks the
compiler of a cluster that is not here, `mock_gpu` has one GPU for many, `roofline` reads jaxprs alone. Nothing here
knows of segments or plans.
"""

from typing import TYPE_CHECKING

from jaxquard._lazy_exports import export_lazily

if TYPE_CHECKING:
    from jaxquard.pricing.cache import PriceCache as PriceCache
    from jaxquard.pricing.communication.collectives import CollectiveInstruction as CollectiveInstruction
    from jaxquard.pricing.communication.collectives import collectives as collectives
    from jaxquard.pricing.measure.machine.steady_cpu import make_cpu_steady as make_cpu_steady
    from jaxquard.pricing.measure.measured_pricer import MeasuredPricer as MeasuredPricer
    from jaxquard.pricing.mock_gpu.mock_gpu_pricer import MockGpuPricer as MockGpuPricer
    from jaxquard.pricing.model.check_parallelism import check_parallelism as check_parallelism
    from jaxquard.pricing.model.known.find_transformer import find_transformer as find_transformer
    from jaxquard.pricing.model.known.find_transformer import guess_sizes as guess_sizes
    from jaxquard.pricing.model.known.find_transformer import known_sizes as known_sizes
    from jaxquard.pricing.model.memory import StageMemory as StageMemory
    from jaxquard.pricing.model.memory import layer_activation_bytes as layer_activation_bytes
    from jaxquard.pricing.model.parallelism import Parallelism as Parallelism
    from jaxquard.pricing.model.pipeline_time import PipelineTime as PipelineTime
    from jaxquard.pricing.model.pipeline_time import pipeline_time as pipeline_time
    from jaxquard.pricing.model.price_step import StepMemory as StepMemory
    from jaxquard.pricing.model.price_step import StepPrice as StepPrice
    from jaxquard.pricing.model.price_step import check_memory as check_memory
    from jaxquard.pricing.model.price_step import microbatches_kept as microbatches_kept
    from jaxquard.pricing.model.price_step import price_step as price_step
    from jaxquard.pricing.model.stage_costs import stage_costs as stage_costs
    from jaxquard.pricing.model.stage_prices import StagePrice as StagePrice
    from jaxquard.pricing.model.stage_prices import StagePrices as StagePrices
    from jaxquard.pricing.model.stage_prices import hide as hide
    from jaxquard.pricing.model.stage_prices import split_layers as split_layers
    from jaxquard.pricing.model.stage_prices import stage_prices as stage_prices
    from jaxquard.pricing.model.system import SystemProfile as SystemProfile
    from jaxquard.pricing.model.system import find_system as find_system
    from jaxquard.pricing.model.system import known_systems as known_systems
    from jaxquard.pricing.model.transformer import Transformer as Transformer
    from jaxquard.pricing.outcomes import TimeBreakdown as TimeBreakdown
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
    from jaxquard.pricing.roofline.roofline_pricer import RooflinePricer as RooflinePricer
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
            "measure.machine.steady_cpu": ["make_cpu_steady"],
            "mock_gpu.mock_gpu_pricer": ["MockGpuPricer"],
            "model.check_parallelism": ["check_parallelism"],
            "model.known.find_transformer": ["find_transformer", "guess_sizes", "known_sizes"],
            "model.memory": ["StageMemory", "layer_activation_bytes"],
            "model.parallelism": ["Parallelism"],
            "model.pipeline_time": ["PipelineTime", "pipeline_time"],
            "model.price_step": ["StepMemory", "StepPrice", "check_memory", "microbatches_kept", "price_step"],
            "model.stage_costs": ["stage_costs"],
            "model.stage_prices": ["StagePrice", "StagePrices", "hide", "split_layers", "stage_prices"],
            "model.system": ["SystemProfile", "find_system", "known_systems"],
            "model.transformer": ["Transformer"],
            "outcomes": ["TimeBreakdown"],
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
            "roofline.roofline_pricer": ["RooflinePricer"],
            "target.compile_pricer": ["CompilePricer"],
            "target.walk_schedule": ["WalkedCollective", "WalkedProgram"],
        },
    )
