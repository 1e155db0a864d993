"""The cost of importing jaxquard, as a ratio to `import jax`: whole processes, from start to exit.

Modules are compiled beforehand into a folder of this run, as an installation does: else each process would compile
them anew where Python may not write beside the sources.
"""

import os
import subprocess
import sys
import tempfile
from functools import partial

from benchmarks.measure import measure, print_ratios

NUM_ROUNDS = 15
BASE = "import jax"
PIPELINE = "import jaxquard as jq; jq.RemoteMesh, jq.accumulate_grads, jq.pipeline_yield, jq.schedules.OneFOneB"
EVERYTHING = "import jaxquard as jq; [getattr(jq, name) for name in jq.__all__]"
ARGUMENTS = {
    BASE: ["-c", "import jax"],
    "bare Python": ["-c", ""],
    "import jaxquard": ["-c", "import jaxquard"],
    "jq.schedules, all of it": ["-c", "from jaxquard.schedules import *"],
    "the names of a pipelined step": ["-c", PIPELINE],
    "search_sharding": ["-c", "from jaxquard import search_sharding"],
    "all of jq.__all__": ["-c", EVERYTHING],
    "jaxquard --version": ["-m", "jaxquard", "--version"],
    "jaxquard --help": ["-m", "jaxquard", "--help"],
    "jaxquard schedule": ["-m", "jaxquard", "schedule", "1f1b", "--stages", "4", "--microbatches", "8"],
}
AT_MOST = {
    "import jaxquard": 1.15,
    "jq.schedules, all of it": 0.25,
    "the names of a pipelined step": 1.15,
    "jaxquard --version": 0.25,
    "jaxquard --help": 0.25,
    "jaxquard schedule": 0.25,
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        candidates = {name: partial(_run, arguments, environment) for name, arguments in ARGUMENTS.items()}
        times = measure(candidates, num_rounds=NUM_ROUNDS)
    print_ratios(times, title=f"whole processes, {NUM_ROUNDS} rounds", base=BASE, at_most=AT_MOST)


def _run(arguments: list[str], environment: dict[str, str]) -> None:
    subprocess.run([sys.executable, *arguments], env=environment, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
