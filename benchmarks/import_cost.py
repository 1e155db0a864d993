"""The cost of importing jaxquard, as a ratio to `import jax`: the processor time of whole processes, start to exit.

Processor time, which other programs on a busy machine hardly change. Modules are compiled beforehand into a folder of
this run, as an installation does: else each process would compile them anew where Python may not write beside the
sources.
"""

import os
import resource
import subprocess
import sys
import tempfile

from benchmarks.measure import Measurement, print_ratios

NUM_ROUNDS = 15
BASE = "import jax"
PIPELINE = "import jaxquard as jq; jq.RemoteMesh, jq.accumulate_grads, jq.pipeline_yield, jq.schedules.OneFOneB"
EVERYTHING = "import jaxquard as jq; [getattr(jq, name) for name in jq.__all__]"
SCHEDULE = ["schedule", "1f1b", "--stages", "4", "--microbatches", "8"]
ARGUMENTS = {
    BASE: ["-c", "import jax"],
    "bare Python": ["-c", ""],
    "import jaxquard": ["-c", "import jaxquard"],
    "jq.schedules": ["-c", "from jaxquard.schedules import *"],
    "a pipelined step": ["-c", PIPELINE],
    "search_sharding": ["-c", "from jaxquard import search_sharding"],
    "all of jq.__all__": ["-c", EVERYTHING],
    "--version": ["-m", "jaxquard", "--version"],
    "--help": ["-m", "jaxquard", "--help"],
    "schedule": ["-m", "jaxquard", *SCHEDULE],
}
AT_MOST = {"import jaxquard": 1.15, "jq.schedules": 0.25, "--version": 0.25, "--help": 0.25, "schedule": 0.25}


def main() -> None:
    names = list(ARGUMENTS)
    times_s: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": folder}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for round_number in range(-1, NUM_ROUNDS):
            first = round_number % len(names)
            for name in names[first:] + names[:first]:
                time_s = _processor_time_s(ARGUMENTS[name], environment)
                if round_number >= 0:
                    times_s[name].append(time_s)
    measured = {name: Measurement(name=name, times_s=tuple(times_s[name])) for name in names}
    print_ratios(measured, title=f"processor time, {NUM_ROUNDS} rounds", base=BASE, at_most=AT_MOST)


def _processor_time_s(arguments: list[str], environment: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], env=environment, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
