"""jaxquard: spreads a plain JAX training step over a cluster, and runs it.

What this package exports is loaded when it is first used: `import jaxquard` does not import JAX.
"""

from typing import TYPE_CHECKING

from jaxquard._lazy_exports import export_lazily

__version__ = "0.1.0"

__all__ = [
    "Checkpoints",
    "Plan",
    "Preempted",
    "RemoteArray",
    "RemoteMesh",
    "ShardingPlan",
    "TrainingRun",
    "__version__",
    "accumulate_grads",
    "apply",
    "cluster",
    "diff",
    "errors",
    "gemm",
    "load_plan",
    "load_sharding",
    "mark_layers",
    "models",
    "parallelize",
    "pipeline_scan",
    "pipeline_yield",
    "plan",
    "pricing",
    "restore",
    "save",
    "schedules",
    "search_sharding",
    "simulate",
    "task",
    "verify",
]

if TYPE_CHECKING:
    from jaxquard import cluster as cluster
    from jaxquard import errors as errors
    from jaxquard import gemm as gemm
    from jaxquard import models as models
    from jaxquard import pricing as pricing
    from jaxquard import schedules as schedules
    from jaxquard import simulate as simulate
    from jaxquard.errors import Preempted as Preempted
    from jaxquard.intraop.plan.search_sharding import search_sharding as search_sharding
    from jaxquard.intraop.plan.sharding_plan import ShardingPlan as ShardingPlan
    from jaxquard.intraop.plan.sharding_plan import load_sharding as load_sharding
    from jaxquard.pipeline.layers.mark_layers import mark_layers as mark_layers
    from jaxquard.pipeline.loop import accumulate_grads as accumulate_grads
    from jaxquard.pipeline.marks import pipeline_yield as pipeline_yield
    from jaxquard.pipeline.marks import task as task
    from jaxquard.pipeline.stacks import pipeline_scan as pipeline_scan
    from jaxquard.planner.parallelize import TrainingRun as TrainingRun
    from jaxquard.planner.parallelize import parallelize as parallelize
    from jaxquard.planner.plan_step import apply as apply
    from jaxquard.planner.plan_step import plan as plan
    from jaxquard.planner.record.diff_plans import diff as diff
    from jaxquard.planner.record.plan import Plan as Plan
    from jaxquard.planner.record.plan import load_plan as load_plan
    from jaxquard.runtime.checkpoint.checkpoints import Checkpoints as Checkpoints
    from jaxquard.runtime.checkpoint.restore import restore as restore
    from jaxquard.runtime.checkpoint.save import save as save
    from jaxquard.runtime.checkpoint.verify import verify as verify
    from jaxquard.runtime.remote_array import RemoteArray as RemoteArray
    from jaxquard.runtime.remote_mesh import RemoteMesh as RemoteMesh
else:
    export_lazily(
        __name__,
        {
            "errors": ["Preempted"],
            "intraop.plan.search_sharding": ["search_sharding"],
            "intraop.plan.sharding_plan": ["ShardingPlan", "load_sharding"],
            "pipeline.layers.mark_layers": ["mark_layers"],
            "pipeline.loop": ["accumulate_grads"],
            "pipeline.marks": ["pipeline_yield", "task"],
            "pipeline.stacks": ["pipeline_scan"],
            "planner.parallelize": ["TrainingRun", "parallelize"],
            "planner.plan_step": ["apply", "plan"],
            "planner.record.diff_plans": ["diff"],
            "planner.record.plan": ["Plan", "load_plan"],
            "runtime.checkpoint.checkpoints": ["Checkpoints"],
            "runtime.checkpoint.restore": ["restore"],
            "runtime.checkpoint.save": ["save"],
            "runtime.checkpoint.verify": ["verify"],
            "runtime.remote_array": ["RemoteArray"],
            "runtime.remote_mesh": ["RemoteMesh"],
        },
        modules=["cluster", "errors", "gemm", "models", "pricing", "schedules", "simulate"],
    )
