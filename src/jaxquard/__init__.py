"""jaxquard: spreads a plain JAX training step over a cluster, and runs it."""

from jaxquard import errors as errors
from jaxquard import schedules as schedules
from jaxquard.intraop.plan.search_sharding import search_sharding as search_sharding
from jaxquard.intraop.plan.sharding_plan import ShardingPlan as ShardingPlan
from jaxquard.intraop.plan.sharding_plan import load_sharding as load_sharding
from jaxquard.pipeline.loop import accumulate_grads as accumulate_grads
from jaxquard.pipeline.marks import pipeline_yield as pipeline_yield
from jaxquard.pipeline.marks import task as task
from jaxquard.pipeline.stacks import pipeline_scan as pipeline_scan
from jaxquard.runtime.checkpoint.restore import restore as restore
from jaxquard.runtime.checkpoint.save import save as save
from jaxquard.runtime.remote_array import RemoteArray as RemoteArray
from jaxquard.runtime.remote_mesh import RemoteMesh as RemoteMesh
