"""What sharded programs cost: seconds and bytes, with where the numbers come from. Knows nothing of segments."""

from typing import TYPE_CHECKING

from jaxquard._lazy_exports import export_lazily

if TYPE_CHECKING:
    from jaxquard.pricing.cache import PriceCache as PriceCache
    from jaxquard.pricing.collectives import Collective as Collective
    from jaxquard.pricing.collectives import collectives as collectives
    from jaxquard.pricing.measure import MeasuredPricer as MeasuredPricer
    from jaxquard.pricing.price import Failure as Failure
    from jaxquard.pricing.price import FailureReason as FailureReason
    from jaxquard.pricing.price import OnProgress as OnProgress
    from jaxquard.pricing.price import Price as Price
    from jaxquard.pricing.price import Pricer as Pricer
    from jaxquard.pricing.price import Progress as Progress
    from jaxquard.pricing.price import Provenance as Provenance
    from jaxquard.pricing.program import ShardedProgram as ShardedProgram
    from jaxquard.pricing.program import reshard_program as reshard_program
    from jaxquard.pricing.spent import Spent as Spent
    from jaxquard.pricing.steady_cpu import make_cpu_steady as make_cpu_steady
else:
    __all__ = export_lazily(
        __name__,
        {
            "cache": ["PriceCache"],
            "collectives": ["Collective", "collectives"],
            "measure": ["MeasuredPricer"],
            "price": ["Failure", "FailureReason", "OnProgress", "Price", "Pricer", "Progress", "Provenance"],
            "program": ["ShardedProgram", "reshard_program"],
            "spent": ["Spent"],
            "steady_cpu": ["make_cpu_steady"],
        },
    )
