"""The overhead of the in-process engine over the bare calls and transfers of a step of tiny tasks.

4 stages x 8 microbatches of a 16-wide perceptron under 1F1B, 64 tasks and 48 transfers, on 4 one-device actors. The
base runs the same compiled calls and transfers from one thread, one after the other, without an order, slots or
threads. Target: less than 3 ms a step in all.
"""

import itertools

import jax
import numpy as np

from benchmarks.measure import format_time, measure, print_ratios
from jaxquard.runtime.in_process.engine import InProcessEngine
from jaxquard.runtime.program.link_program import RUN, SEND
from jaxquard.runtime.transfer import place
from tests.runtime.build_program import make_meshes
from tests.runtime.mlp_pipeline import MlpPipeline

NUM_ROUNDS = 200
TARGET_S = 3e-3


def main() -> None:
    jax.config.update("jax_platforms", "cpu")
    pipeline = MlpPipeline()
    engine = InProcessEngine(make_meshes(pipeline.num_stages))
    loaded = engine.load(pipeline.program())
    inputs = pipeline.inputs(loaded, place)

    def step():
        run = engine.execute(loaded, inputs)
        run.wait()

    bare = _make_bare(loaded, inputs)
    found = measure({"bare calls and transfers": bare, "engine": step}, num_rounds=NUM_ROUNDS, num_warmups=20)
    num_tasks = pipeline.num_stages * pipeline.num_microbatches * 2
    print_ratios(found, title=f"{num_tasks} tasks, 48 transfers, 4 actors", base="bare calls and transfers")
    over_s = found["engine"].median_s - found["bare calls and transfers"].median_s
    print(f"per task over bare: {format_time(over_s / num_tasks)}")
    verdict = "kept" if found["engine"].median_s < TARGET_S else "missed"
    print(f"target below {format_time(TARGET_S)} a step: {verdict}")


def _make_bare(loaded, inputs):
    """The same calls and moves, stage after stage, on weights and activations that are there already."""
    bare_lists = [_bare_list(list_, values) for list_, values in zip(loaded.lists, inputs, strict=True)]

    def bare():
        for bare_list in bare_lists:
            bare_list()

    return bare


def _bare_list(list_, values):
    weights = values[:2]
    x = place(np.zeros((MlpPipeline().num_rows, MlpPipeline().width), np.float32), weights[0].sharding)
    zeros, *calls = [work[1] for kind, *_, work in list_.instructions if kind == RUN]
    forward, backward = calls[0], next(call for call in calls if call is not calls[0])
    moves = [work[1][0][1] for kind, *_, work in list_.instructions if kind == SEND]

    def run():
        sums = zeros()
        remaining = iter(moves)
        for call in calls:
            if call is forward:
                (out,) = call(*weights, x)
            else:
                out, *sums = backward(*weights, x, x, *sums)
            for move in itertools.islice(remaining, 1):
                move(out)

    return run


if __name__ == "__main__":
    main()
