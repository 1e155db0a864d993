"""2D tensor-parallel matrix products: MeshSlice, its baselines, its cost model and its autotuner.

In: matrices on a mesh (`multiply`, `matmul`, `dense`), or the sizes of layers and a cluster (`autotune`).
Out: products with their gradients; plans of the fastest way to multiply. The order of the folders is `algorithms`,
`cost`, `autotune`, then `layers` and `overlap`; each uses only those before it.
"""

from typing import TYPE_CHECKING

from jaxquard._lazy_exports import export_lazily

if TYPE_CHECKING:
    from jaxquard.gemm.algorithms.multiply import multiply as multiply
    from jaxquard.gemm.algorithms.multiply import multiply_local as multiply_local
    from jaxquard.gemm.algorithms.products.product import Layout as Layout
    from jaxquard.gemm.algorithms.products.product import Product as Product
    from jaxquard.gemm.algorithms.registry import ALGORITHMS as ALGORITHMS
    from jaxquard.gemm.autotune.autotune import autotune as autotune
    from jaxquard.gemm.autotune.models import gpt3 as gpt3
    from jaxquard.gemm.autotune.models import megatron_nlg as megatron_nlg
    from jaxquard.gemm.autotune.models import transformer_block as transformer_block
    from jaxquard.gemm.autotune.table import Tuning as Tuning
    from jaxquard.gemm.autotune.table import TuningRow as TuningRow
    from jaxquard.gemm.cost.cost import GemmCost as GemmCost
    from jaxquard.gemm.layers.dense import Dense as Dense
    from jaxquard.gemm.layers.dense import dense as dense
    from jaxquard.gemm.layers.matmul import layer_shardings as layer_shardings
    from jaxquard.gemm.layers.matmul import matmul as matmul
    from jaxquard.gemm.layers.matmul import matmul_local as matmul_local
    from jaxquard.gemm.layers.norms import layer_norm as layer_norm
    from jaxquard.gemm.layers.norms import rms_norm as rms_norm
    from jaxquard.gemm.layers.plan_file import load_plan as load_plan
    from jaxquard.gemm.layers.plan_file import save_plan as save_plan
    from jaxquard.gemm.layers.products import BlockProducts as BlockProducts
    from jaxquard.gemm.layers.products import products as products
    from jaxquard.gemm.overlap.compile import TPU_COMPILER_OPTIONS as TPU_COMPILER_OPTIONS
    from jaxquard.gemm.problem import AlgorithmOptions as AlgorithmOptions
    from jaxquard.gemm.problem import Dataflow as Dataflow
    from jaxquard.gemm.problem import FcLayer as FcLayer
    from jaxquard.gemm.problem import GemmPlan as GemmPlan
    from jaxquard.gemm.problem import GemmProblem as GemmProblem
    from jaxquard.gemm.problem import Kernel as Kernel
    from jaxquard.gemm.problem import LayerPlan as LayerPlan
    from jaxquard.gemm.problem import Stationary as Stationary
else:
    __all__ = export_lazily(
        __name__,
        {
            "algorithms.multiply": ["multiply", "multiply_local"],
            "algorithms.products.product": ["Layout", "Product"],
            "algorithms.registry": ["ALGORITHMS"],
            "autotune.autotune": ["autotune"],
            "autotune.models": ["gpt3", "megatron_nlg", "transformer_block"],
            "autotune.table": ["Tuning", "TuningRow"],
            "cost.cost": ["GemmCost"],
            "layers.dense": ["Dense", "dense"],
            "layers.matmul": ["layer_shardings", "matmul", "matmul_local"],
            "layers.norms": ["layer_norm", "rms_norm"],
            "layers.plan_file": ["load_plan", "save_plan"],
            "layers.products": ["BlockProducts", "products"],
            "overlap.compile": ["TPU_COMPILER_OPTIONS"],
            "problem": [
                "AlgorithmOptions",
                "Dataflow",
                "FcLayer",
                "GemmPlan",
                "GemmProblem",
                "Kernel",
                "LayerPlan",
                "Stationary",
            ],
        },
    )
