"""The cost of a search for shardings: a small GPT with and without cached prices, and the analysis by depth.

Searches are commands, as a user runs them: `jaxquard shard search gpt-tiny` on 8 virtual CPU devices.
"""

import dataclasses
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_MODEL = "gpt-tiny"
_NUM_CACHED = 3
_DEPTHS = (24, 48, 96)


def main() -> None:
    """Prints the seconds of each, beside what is wanted."""
    for depth in _DEPTHS:
        traced_s, analysed_s = _analysis_s(depth)
        wanted = ", wanted 2 s" if depth == max(_DEPTHS) else ""
        print(f"{depth} layers: traced by JAX in {traced_s:.1f} s, analysed in {analysed_s:.2f} s{wanted}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        print(f"full search of {_MODEL}: {_search_s(Path(folder)):.0f} s, wanted 360 s on 2 cores", flush=True)
        cached_s = [_search_s(Path(folder)) for _ in range(_NUM_CACHED)]
    print(f"the same, cached: {', '.join(f'{time_s:.1f}' for time_s in cached_s)} s, wanted 5 s")


def _search_s(folder: Path) -> float:
    command = ["shard", "search", _MODEL, "--cache", str(folder / "prices"), "--out", str(folder / "plan.json")]
    start_s = time.perf_counter()
    subprocess.run([sys.executable, "-m", "jaxquard", *command], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start_s


def _analysis_s(num_layers: int) -> tuple[float, float]:
    """Tracing, and blocks and segments, of a model that is not in anyone's memory yet."""
    import jax

    from jaxquard.intraop.segments.analysis import analyse_step
    from jaxquard.intraop.step.traced_step import trace_step
    from jaxquard.models.zoo import find_model, training_step

    jax.config.update("jax_platforms", "cpu")
    model = find_model(_MODEL)
    config = dataclasses.replace(model.config, num_layers=num_layers)
    made = training_step(model.module, config, batch_size=8, optimizer="adam")
    args = (jax.eval_shape(made.init_state, jax.random.key(0)), jax.eval_shape(lambda: made.batch))
    start_s = time.perf_counter()
    traced = trace_step(made.train_step, args)
    traced_s = time.perf_counter()
    analyse_step(traced, axes={"devices": 8})
    return traced_s - start_s, time.perf_counter() - traced_s


if __name__ == "__main__":
    main()
