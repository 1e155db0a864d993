"""2D tensor-parallel matrix products: MeshSlice, its rivals, its cost model and its autotuner."""

from jaxquard.gemm.autotune import autotune as autotune
from jaxquard.gemm.autotune_models import gpt3 as gpt3
from jaxquard.gemm.autotune_models import megatron_nlg as megatron_nlg
from jaxquard.gemm.autotune_models import transformer_block as transformer_block
from jaxquard.gemm.autotune_table import Tuning as Tuning
from jaxquard.gemm.autotune_table import TuningRow as TuningRow
from jaxquard.gemm.cost import GemmCost as GemmCost
from jaxquard.gemm.dense import Dense as Dense
from jaxquard.gemm.dense import dense as dense
from jaxquard.gemm.layer_shardings import layer_shardings as layer_shardings
from jaxquard.gemm.layout import Layout as Layout
from jaxquard.gemm.matmul import matmul as matmul
from jaxquard.gemm.matmul import matmul_local as matmul_local
from jaxquard.gemm.multiply import multiply as multiply
from jaxquard.gemm.multiply import multiply_local as multiply_local
from jaxquard.gemm.plan_text import load_plan as load_plan
from jaxquard.gemm.plan_text import save_plan as save_plan
from jaxquard.gemm.problem import Dataflow as Dataflow
from jaxquard.gemm.problem import FcLayer as FcLayer
from jaxquard.gemm.problem import GemmPlan as GemmPlan
from jaxquard.gemm.problem import GemmProblem as GemmProblem
from jaxquard.gemm.problem import LayerPlan as LayerPlan
from jaxquard.gemm.problem import Stationary as Stationary
from jaxquard.gemm.product import Product as Product
from jaxquard.gemm.registry import ALGORITHMS as ALGORITHMS
from jaxquard.gemm.tpu_options import TPU_COMPILER_OPTIONS as TPU_COMPILER_OPTIONS
