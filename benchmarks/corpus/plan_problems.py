"""A worker process: plans problems of the corpus with the code in PYTHONPATH.

Reads a JSON list of names, and writes a line of JSON for each: the plan in frozen words, its predicted seconds and
bytes, and the seconds of the search. Imports and the types of a loss come before the clock starts.
"""

import json
import sys
import time
from typing import Any

from benchmarks.corpus.frozen_words import frozen_words, is_simpler_of_tie
from benchmarks.corpus.problems import find_problem


def plan_problem(name: str) -> dict[str, Any]:
    """Plans a problem; one that has no plan is an answer too."""
    from jaxquard.errors import JaxquardError

    search = find_problem(name).prepare()
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    try:
        plan = search()
    except JaxquardError as error:
        found: dict[str, Any] = {"name": name, "refusal": str(error)}
    else:
        found = {
            "name": name,
            "time_s": plan.time_s,
            "peak_bytes": plan.memory_bytes,
            "limit_bytes": plan.memory_limit_bytes,
            "is_simpler_of_tie": is_simpler_of_tie(plan),
            "words": frozen_words(plan),
        }
    spent = {"search_s": time.perf_counter() - start_s, "search_cpu_s": time.process_time() - start_cpu_s}
    return found | {key: round(value, 3) for key, value in spent.items()}


def main() -> None:
    import jax

    jax.config.update("jax_platforms", "cpu")
    for name in json.load(sys.stdin):
        print(json.dumps(plan_problem(name)), flush=True)


if __name__ == "__main__":
    main()
