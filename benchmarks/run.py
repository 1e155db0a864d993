"""Runs benchmarks, each in its own process: `python -m benchmarks.run [NAME ...]`.

A benchmark is a file `benchmarks/NAME.py` whose `main()` prints a table. One that takes hours runs only if it is named.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).parent
HELPERS = {"__init__", "faults_program", "live_memory", "measure", "mock_gpu_report", "run"}
LONG = {"compile_prices", "faults", "gemm_regret", "plan_corpus", "server_kills", "shard_search"}


def benchmark_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in HELPERS)


def run_benchmark(name: str) -> bool:
    """Runs one benchmark and says whether it ended well."""
    print(f"== {name}", flush=True)
    start_s = time.perf_counter()
    code = f"from benchmarks.{name} import main; main()"
    status = subprocess.run([sys.executable, "-c", code], cwd=FOLDER.parent).returncode
    outcome = "done" if status == 0 else f"failed with status {status}"
    print(f"== {name}: {outcome} in {time.perf_counter() - start_s:.0f} s\n", flush=True)
    return status == 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description="Runs benchmarks.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones; all but the long ones if none is named")
    names = parser.parse_args(arguments).names
    unknown = sorted(set(names) - set(benchmark_names()))
    if unknown:
        parser.error(f"there is no benchmark {', '.join(unknown)}. There are: {', '.join(benchmark_names())}.")
    wanted = names or [name for name in benchmark_names() if name not in LONG]
    failed = [name for name in wanted if not run_benchmark(name)]
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
