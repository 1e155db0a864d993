"""The host time of planning: MeshSlice's tuning and simulation for 4096 chips, the search over 96 layers.

In seconds of processor time, from the minimum to the maximum of several runs. Tests hold wider bounds.
"""

import math
import time
from collections.abc import Callable

import numpy as np

from jaxquard.gemm.algorithms.registry import ALGORITHMS
from jaxquard.gemm.autotune.autotune import autotune
from jaxquard.gemm.autotune.models import gpt3
from jaxquard.gemm.cost.play import play_plan
from jaxquard.intraop.search.chain import PricedSegment, search_chain

_NUM_TIMES = 5
_NUM_CHIPS = 4096
_NUM_LAYERS = 96
# A layer of four blocks with three strategies each; three shardings of what passes between layers.
_NUM_STRATEGIES, _NUM_LAYOUTS = 81, 3


def main() -> None:
    """Prints the seconds of each, beside what is wanted."""
    problem = gpt3(batch=2048)
    _report_time(f"tuning GPT-3 for {_NUM_CHIPS} chips", lambda: autotune(problem, num_chips=_NUM_CHIPS), wanted_s=2)
    for algorithm in ALGORITHMS:
        plan = autotune(problem, num_chips=_NUM_CHIPS, algorithm=algorithm, memory_limit_bytes=math.inf).plan
        _report_time(
            f"simulating its block, {algorithm}", lambda plan=plan: play_plan(problem, plan, "tpu-v4"), wanted_s=1
        )
    chain = _chain()
    _report_time(f"searching {_NUM_LAYERS} layers", lambda: search_chain(chain, memory_limit_bytes=None), wanted_s=2)
    ends = search_chain(chain, memory_limit_bytes=None, max_points=2)
    limit_bytes = int(0.7 * ends.smallest.size_bytes + 0.3 * ends.best.size_bytes)
    _report_time("the same under a memory limit", lambda: search_chain(chain, memory_limit_bytes=limit_bytes))


def _report_time(what: str, work: Callable[[], object], wanted_s: float | None = None) -> None:
    times_s = []
    for _ in range(_NUM_TIMES):
        start_s = time.process_time()
        work()
        times_s.append(time.process_time() - start_s)
    wanted = "" if wanted_s is None else f", wanted {wanted_s:g} s"
    print(f"{what}: {min(times_s):.2f} to {max(times_s):.2f} s{wanted}", flush=True)


def _chain() -> list[PricedSegment]:
    """An embedding, layers of their own prices each, and a head; prices are random."""
    rng = np.random.default_rng(0)

    def segment(num_strategies: int, is_first: bool = False) -> PricedSegment:
        between = rng.uniform(0, 5e-4, (_NUM_LAYOUTS, _NUM_LAYOUTS)) * (1 - np.eye(_NUM_LAYOUTS))
        return PricedSegment(
            times_s=tuple(rng.uniform(1e-3, 4e-3, num_strategies).tolist()),
            sizes_bytes=tuple(rng.integers(10**8, 8 * 10**8, num_strategies).tolist()),
            entries=tuple(index * _NUM_LAYOUTS // num_strategies for index in range(num_strategies)),
            exits=tuple(index % _NUM_LAYOUTS for index in range(num_strategies)),
            reshards_s=None if is_first else between,
        )

    layers = [segment(_NUM_STRATEGIES) for _ in range(_NUM_LAYERS)]
    return [segment(_NUM_LAYOUTS, is_first=True), *layers, segment(_NUM_LAYOUTS)]


if __name__ == "__main__":
    main()
