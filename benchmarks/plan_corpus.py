"""The plans of 84 problems, recorded, and new plans judged against them by a pricer that does not change.

    python -m benchmarks.plan_corpus record [--only PATTERN] [--missing]
    python -m benchmarks.plan_corpus check [--only PATTERN]
    python -m benchmarks.plan_corpus judge [--only PATTERN] [--time-frozen]

`record` plans every problem and keeps the plans. `judge` plans them again and compares: both plans are priced by the
code of `FROZEN_COMMIT`, which comes out of git into build/. It fails if the new plans are slower or too large, or if
the searches take longer. `check` prices the recorded plans alone, which gives the recorded seconds again. Each problem
is planned in a process of its own. The seconds of a search are the processor's, without imports; the pace of a shared
machine wanders by a fifth, so `--time-frozen` searches with the frozen code as well, beside each new search.
"""

import argparse
import fnmatch
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.corpus.problems import CORPUS, CorpusProblem
from benchmarks.corpus.verdict import HEADS, Answer, Verdict, compare, summarise

FROZEN_COMMIT = "77350d21"
ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "plan_corpus.json"
# Workers, each a process: one that plans and one that prices.
_PLANNER, _PRICER = "benchmarks.corpus.plan_problems", "benchmarks.corpus.price_frozen"


def main(arguments: Sequence[str] | None = None, *, problems: Sequence[CorpusProblem] = CORPUS) -> None:
    """Records, checks or judges.

    Raises:
        SystemExit: if a limit is missed.
    """
    options = _parser().parse_args(arguments)
    names = [one.name for one in problems if fnmatch.fnmatch(one.name, options.only or "*")]
    if not names:
        raise SystemExit(f"no problem is called {options.only!r}. There are: {', '.join(one.name for one in problems)}")
    if options.command == "record":
        record(names, options.file, only_missing=options.missing)
        return
    kept: Iterable[Answer] = [one for one in read_record(options.file)["problems"] if one["name"] in names]
    frozen = unpack_frozen()
    if options.time_frozen:
        kept = ({**one, **ask(_PRICER, frozen, [{"name": one["name"]}])[0]} for one in kept)
    verdicts = judge(
        kept,
        plan=plan_now if options.command == "judge" else None,
        price_plans=lambda asked: ask(_PRICER, frozen, asked),
    )
    if not print_verdicts(verdicts):
        raise SystemExit(1)


def record(
    names: Sequence[str], file: Path, *, plan: Callable[[str], Answer] | None = None, only_missing: bool = False
) -> None:
    """Plans problems with the code of the tree, and keeps the plans, one after the other.

    Args:
        plan: plans a problem by its name; by default `plan_now`.
        file: what it has of other problems stays.
        only_missing: leaves the problems that it has.
    """
    facts = {"commit": _commit(), **_machine()}
    known = read_record(file) if file.exists() else {**facts, "problems": []}
    plans = {one["name"]: one for one in known["problems"]}
    keeps_some = only_missing or not plans.keys() <= set(names)
    if plans and keeps_some and any(known[key] != value for key, value in facts.items()):
        raise SystemExit(f"{file} is of other code or of another machine. Record all problems, or give another --file.")
    for name in names:
        if only_missing and name in plans:
            continue
        plans[name] = (plan or plan_now)(name)
        order = {problem.name: place for place, problem in enumerate(CORPUS)}
        ordered = sorted(plans.values(), key=lambda one: order.get(one["name"], len(order)))
        _write_record({**facts, "problems": ordered}, file)


def judge(
    kept: Iterable[Answer],
    *,
    plan: Callable[[str], Answer] | None,
    price_plans: Callable[[Sequence[Answer]], Sequence[Answer]],
) -> list[Verdict]:
    """Plans recorded problems again, and compares the plans.

    Args:
        kept: the record; each problem is planned when its turn comes.
        plan: plans a problem by its name; None to check the record alone.
        price_plans: prices plans in frozen words, a list of `{"name", "words"}`, by the frozen code.
    """
    pairs = [(then, None if plan is None else plan(then["name"])) for then in kept]
    # Most plans are as they were, and are priced once.
    plans = {_key(one): one for pair in pairs for one in pair if one is not None and "words" in one}
    prices = price_plans([{"name": one["name"], "words": one["words"]} for one in plans.values()])
    known = dict(zip(plans, prices, strict=True))
    return [
        compare(then, now, then_price=known.get(_key(then)), now_price=None if now is None else known.get(_key(now)))
        for then, now in pairs
    ]


def print_verdicts(verdicts: Sequence[Verdict]) -> bool:
    """Prints a table and what follows from it; returns whether all limits are met."""
    print(f"| {' | '.join(HEADS)} |\n| --- |{' ---: |' * 5} --- | --- |")
    for verdict in verdicts:
        print(f"| {' | '.join(verdict.cells)} |")
    lines, is_met = summarise(verdicts)
    print("", *lines, sep="\n")
    return is_met


def plan_now(name: str) -> Answer:
    """Plans a problem with the code of the tree, in a process of its own."""
    (found,) = ask(_PLANNER, ROOT / "src", [name])
    step = found["refusal"] if "refusal" in found else f"{found['time_s']:.5g} s a step"
    print(f"{name}: {step}; planned in {found['search_s']:.1f} s", file=sys.stderr, flush=True)
    return found


def ask(worker: str, source: Path, asked: Sequence[Any]) -> list[Answer]:
    """Asks a worker process, which has the package of a folder.

    Args:
        worker: its module.
        source: the folder.
        asked: the worker gives an answer to each.
    """
    process = subprocess.run(
        [sys.executable, "-m", worker],
        input=json.dumps(asked),
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.fspath(source)},
        text=True,
        check=True,
    )
    return [json.loads(line) for line in process.stdout.splitlines()]


def unpack_frozen() -> Path:
    """Returns the folder of the frozen package; git has it, and it is unpacked once.

    Raises:
        SystemExit: if git does not have that commit.
    """
    folder = ROOT / "build" / f"frozen-{FROZEN_COMMIT}"
    if not folder.exists():
        archive = _git("archive", FROZEN_COMMIT, "src")
        if archive is None:
            raise SystemExit(f"git has no commit {FROZEN_COMMIT} here. Get it by `git fetch --unshallow`.")
        folder.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as partial:
            subprocess.run(["tar", "-x", "-C", partial], input=archive, check=True)
            try:
                Path(partial, "src").rename(folder)
            except OSError:
                if not folder.exists():  # Another process may have been first.
                    raise
    return folder


def has_frozen() -> bool:
    """Returns true if git has the frozen commit; a shallow clone does not."""
    return _git("cat-file", "-e", f"{FROZEN_COMMIT}^{{commit}}") is not None


def _git(*arguments: str) -> bytes | None:
    """Returns what git prints; None if it fails."""
    found = subprocess.run([shutil.which("git") or "false", *arguments], cwd=ROOT, capture_output=True)
    return found.stdout if found.returncode == 0 else None


def _commit() -> str:
    """Returns the last commit that changed the package, and a plus if there are changes since."""
    last = (_git("log", "-1", "--abbrev=8", "--format=%h", "--", "src") or b"").decode().strip()
    return last + ("+" if _git("status", "--porcelain", "src") else "")


def _machine() -> dict[str, str]:
    """Returns what the seconds of a search depend on."""
    processors = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*:\s*(.+)", processors.read_text()) if processors.exists() else None
    kind = named[1] if named else platform.machine()
    versions = f"Python {platform.python_version()}, JAX {importlib.metadata.version('jax')}"
    return {"machine": f"{os.cpu_count()} cores of {kind}", "versions": versions}


def read_record(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text())


def _write_record(content: Mapping[str, Any], file: Path) -> None:
    """Writes a line for each problem, so that a comparison of two files shows which ones differ."""
    facts = {key: value for key, value in content.items() if key != "problems"}
    lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in content["problems"])
    temporary = file.with_suffix(".partial")
    temporary.write_text(f'{json.dumps(facts)[:-1]}, "problems": [\n{lines}\n]}}\n')
    temporary.replace(file)


def _key(answer: Answer) -> str:
    return json.dumps([answer["name"], answer.get("words")], sort_keys=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.plan_corpus",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", nargs="?", choices=("record", "check", "judge"), default="judge")
    parser.add_argument("--only", metavar="PATTERN", help="problems by name, such as 'llama*' or '*on cpu-8'")
    parser.add_argument("--file", type=Path, default=RESULTS, metavar="FILE", help="the record")
    parser.add_argument("--time-frozen", action="store_true", help="judge seconds of searches by the frozen code's")
    parser.add_argument("--missing", action="store_true", help="record only problems that the file lacks")
    return parser


if __name__ == "__main__":
    main()
