"""The time to price training steps by the model: 10,000 strategies of GPT-3 and Llama-3 on up to 16,384 chips.

In seconds of processor time on one core. Wanted: 10,000 strategies in at most 10 s.
"""

import itertools
import time

from jaxquard.cluster import load_cluster
from jaxquard.errors import StepPriceError
from jaxquard.pricing import Parallelism, find_system, find_transformer, price_step

_NUM_STRATEGIES = 10_000
_WANTED_S = 10
_CLUSTERS = ("h100-8x2048", "a100-8x140")
_MODELS = ("GPT3-175B", "Llama3-70B", "Llama3-405B")


def main() -> None:
    """Prints the seconds, and how many strategies were priced."""
    system = find_system("NeMo")
    clusters = {name: load_cluster(name) for name in _CLUSTERS}
    transformers = {name: find_transformer(name, seq=4096) for name in _MODELS}
    start_s, priced, refused = time.process_time(), 0, 0
    for name, parallelism, cluster in itertools.islice(strategies(), _NUM_STRATEGIES):
        try:
            price_step(transformers[name], parallelism, clusters[cluster], system)
            priced += 1
        except StepPriceError:
            refused += 1
    spent_s = time.process_time() - start_s
    print(f"{priced} strategies priced, {refused} refused: {spent_s:.1f} s, wanted {_WANTED_S} s", flush=True)


def strategies():
    """Yields a model, a strategy and a cluster, all different."""
    degrees = itertools.product(
        _CLUSTERS,
        _MODELS,
        (128, 256, 512, 1024),
        (1, 2, 4, 8),
        (1, 2, 4, 8, 16),
        (1, 2),
        (1, 2, 4),
        (1, 2, 4, 8),
        ("none", "selective", "full"),
    )
    for cluster, name, count, tensor, pipeline, context, chunks, microbatch, recompute in degrees:
        data = count // (tensor * pipeline * context)
        if data < 1 or (pipeline == 1 and chunks > 1):
            continue
        yield (
            name,
            Parallelism(
                tensor=tensor,
                sequence=tensor > 1,
                pipeline=pipeline,
                context=context,
                num_chunks=chunks,
                data=data,
                zero=1,
                microbatch=microbatch,
                global_batch=1024,
                recompute=recompute,
                schedule="interleaved" if chunks > 1 else "1f1b",
            ),
            cluster,
        )


if __name__ == "__main__":
    main()
