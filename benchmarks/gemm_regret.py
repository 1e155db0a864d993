"""The autotuner's simulated regret: the plan that it finds over the best of all layouts, slice counts and forms.

The oracle shares with the tuner what both are measured by: the simulator, the steps that it plays and the seconds of a
transpose. It has none of the tuner's prices and of its search: on every mesh it simulates every slice count of every
product in every form of every layer (but those whose products alone take longer than the best so far), and tries all
sequences of layouts one by one. Both choose among MeshSlice's plans.
"""

import functools
import itertools
import math
import sys

from jaxquard.cluster import Cluster, load_cluster
from jaxquard.gemm.algorithms.products.layer_products import sized_products
from jaxquard.gemm.algorithms.registry import mesh_shapes
from jaxquard.gemm.autotune.autotune import autotune
from jaxquard.gemm.autotune.models import gpt3, megatron_nlg
from jaxquard.gemm.cost.play import play_product
from jaxquard.gemm.cost.ring_transfers import transpose_time_s
from jaxquard.gemm.cost.steps import product_steps
from jaxquard.gemm.problem import AlgorithmOptions, GemmProblem, Stationary

LIMIT = 1.05
PRESETS = ("tpu-v4", "v5e", "v5p", "v6e", "h100", "h200", "a100")
MODELS = {"gpt3": gpt3, "megatron-nlg": megatron_nlg}
FORMS = tuple(itertools.product(Stationary, (False, True)))
# Layouts that each form takes and gives: False is rows over rows (Table 1 of MeshSlice).
LAYOUTS = {form: ((form[0] is Stationary.W) != form[1], form[1]) for form in FORMS}


def best_simulated_s(problem: GemmProblem, cluster: Cluster, num_chips: int, *, block: int = 8) -> float:
    """Returns the seconds of the best plan of MeshSlice on any mesh, by simulation alone."""
    times_s = (best_on_mesh_s(problem, cluster, mesh, block=block) for mesh in mesh_shapes("meshslice", num_chips))
    return min(times_s) * problem.num_blocks


def best_on_mesh_s(problem: GemmProblem, cluster: Cluster, mesh: tuple[int, int], *, block: int) -> float:
    """Returns the seconds of the best sequence of forms of one block; infinity if the mesh divides none."""
    prices = [
        {form: _best_layer_s(problem, layer, form, cluster, mesh, block) for form in FORMS} for layer in problem.layers
    ]
    best_s = math.inf
    for sequence in itertools.product(FORMS, repeat=len(problem.layers)):
        for starts_turned in (False, True):
            best_s = min(best_s, _sequence_s(problem, cluster, mesh, prices, sequence, starts_turned))
    return best_s


def _sequence_s(problem, cluster, mesh, prices, sequence, starts_turned) -> float:
    time_s, is_turned = 0.0, starts_turned
    for position, (layer, form) in enumerate(zip(problem.layers, sequence, strict=True)):
        takes, gives = LAYOUTS[form]
        time_s += prices[position][form]
        time_s += _transpose_s(problem, cluster, mesh, layer.in_features) if takes != is_turned else 0.0
        is_turned = gives
        if layer.ends_residual or position == len(sequence) - 1:
            time_s += _transpose_s(problem, cluster, mesh, layer.out_features) if gives != starts_turned else 0.0
            is_turned = starts_turned
    return time_s


@functools.cache
def _transpose_s(problem, cluster, mesh, features: int) -> float:
    """Returns the seconds of a transpose forward and one backward."""
    shard = problem.item_bytes * problem.num_rows * features / math.prod(mesh)
    return 2 * transpose_time_s(cluster, shard_bytes=shard, mesh_shape=mesh)


def _best_layer_s(problem, layer, form, cluster, mesh, block: int) -> float:
    stationary, is_transposed = form
    products = sized_products(
        layer,
        num_rows=problem.num_rows,
        stationary=stationary,
        is_transposed=is_transposed,
        item_bytes=problem.item_bytes,
    )
    if not all(product.is_divided_by(mesh) for product in products):
        return math.inf
    splits = (False, True) if cluster.network.hides_one_collective else (False,)
    return min(sum(_best_product_s(product, cluster, mesh, block, split) for product in products) for split in splits)


def _best_product_s(product, cluster, mesh, block: int, is_split: bool) -> float:
    shard = math.gcd(product.sliced_size // mesh[0], product.sliced_size // mesh[1])
    counts = [1] if shard % block else [count for count in range(1, shard // block + 1) if shard // block % count == 0]
    best_s = math.inf
    for count in counts:
        how = {
            "algorithm": "meshslice",
            "mesh_shape": mesh,
            "options": AlgorithmOptions(slices=count, block=block, split_for_overlap=is_split),
        }
        steps = product_steps(cluster, product, **how)
        # The chip computes all of it, whatever else happens.
        if steps.num_iterations * steps.compute_s < best_s:
            best_s = min(best_s, play_product(cluster, product, **how, memory_contention=True).time_s)
    return best_s


def regret(problem: GemmProblem, cluster: Cluster, num_chips: int) -> float:
    """Returns the simulated time of the tuned plan over that of the best."""
    tuned = autotune(problem, cluster, num_chips, memory_limit_bytes=math.inf).best
    assert tuned.simulated_s is not None
    return tuned.simulated_s / best_simulated_s(problem, cluster, num_chips)


def main() -> None:
    """Prints the regret of every preset, model and power of two of chips; names of presets on the command line."""
    worst = 0.0
    for name, (model, make) in itertools.product(sys.argv[1:] or PRESETS, MODELS.items()):
        cluster = load_cluster(name)
        for exponent in range(13):
            if 2**exponent <= cluster.num_chips:
                problem = make(batch=max(2, 2**exponent // 2), num_blocks=1)
                found = regret(problem, cluster, 2**exponent)
                worst = max(worst, found)
                print(f"{name:8} {model:14} {2**exponent:5} chips  regret {found:.4f}", flush=True)
    print(f"the worst of all {worst:.4f}, at most {LIMIT} is asked")


if __name__ == "__main__":
    main()
