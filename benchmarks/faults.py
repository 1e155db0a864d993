"""Faults: a training run under `jaxquard run` that is disturbed again and again, from a seeded plan.

Each fault comes from outside, at a step of the plan: an actor is killed or stopped, Ray's servers or the controller are
killed, files cannot grow any more (as on a full disk), bits of the newest checkpoint are flipped, an actor is killed
during a save or during a restart. The run must finish, the loss of each step must have the bits of a run that nothing
disturbed, and no process and no temporary folder may be left.

    python -m benchmarks.faults --faults 200 --seed 0
"""

import argparse
import contextlib
import os
import queue
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from jaxquard.runtime.supervisor.process_tree import list_marked

ROOT = Path(__file__).parent.parent
STEPS_BETWEEN = 3
KEPT_CHECKPOINTS = 3
EVENT_LIMIT_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault of the plan: its kind, the step after which it comes, a delay, and a number for its own choices."""

    kind: str
    step: int
    delay_s: float
    choice: int


@dataclass(slots=True, kw_only=True)
class FaultReport:
    """The result of a disturbed run: its problems, none if all is well, and figures.

    Attributes:
        problems: in words.
        recovery_s: for each kind of fault, the times from a fault to the next step that no attempt had reached.
        num_attempts: how often the program was started.
        num_fallbacks: how often it left a damaged checkpoint for the one before.
        time_s: the time of the run.
    """

    problems: list[str] = field(default_factory=list)
    recovery_s: dict[str, list[float]] = field(default_factory=dict)
    num_attempts: int = 0
    num_fallbacks: int = 0
    time_s: float = 0.0


class DisturbedRun:
    """A training run under the supervisor, and the means to disturb it.

    Attributes:
        losses: for each step the losses that it had, as hexadecimal texts; one if all is well.
    """

    def __init__(self, folder: Path, *, pause_s: float, runtime: str) -> None:
        self.folder, self.run_id = folder, f"faults-{os.getpid()}-{time.monotonic_ns()}"
        self.losses: dict[int, set[str]] = {}
        self.folders: set[str] = set()
        (folder / "tmp").mkdir()
        options = ("--id", self.run_id, "--out", "runs", "--progress", "work/checkpoints")
        limits = ("--backoff", "0.05", "--max-backoff", "1")
        program = ("-m", "benchmarks.faults_program", "work", "--pause", str(pause_s), "--runtime", runtime)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "jaxquard", "run", *options, *limits, *program],
            cwd=folder,
            env=environment(TMPDIR=str(folder / "tmp")),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._events: queue.Queue[list[str]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def last_step(self) -> int:
        return max(self.losses, default=-1)

    @property
    def log(self) -> str:
        return (self.folder / "runs" / self.run_id / "log.txt").read_text()

    @property
    def checkpoints(self) -> list[Path]:
        """The visible checkpoints, the newest last."""
        return sorted((self.folder / "work" / "checkpoints").glob("[!.]*"))

    def end_after(self, num_steps: int) -> None:
        """Lets the program end after so many steps."""
        (self.folder / "num_steps").write_text(str(num_steps))
        os.replace(self.folder / "num_steps", self.folder / "work" / "num_steps")

    def forget_events(self) -> None:
        """Drops the events that have come so far."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._events.get_nowait()

    def wait_for(self, is_wanted: Callable[[list[str]], bool]) -> None:
        """Waits for an event of the program."""
        end_s = time.monotonic() + EVENT_LIMIT_S
        while True:
            words = self._events.get(timeout=max(0.0, end_s - time.monotonic()))
            if words == ["ended"]:
                raise EOFError(f"the run ended before its time:\n{self.log[-3000:]}")
            if is_wanted(words):
                return

    def kill(self, name: str, choice: int, number: int = signal.SIGKILL) -> None:
        """Sends a signal to a process of a kind, if there is one."""
        found = self.find(name)
        self.forget_events()
        if found:
            with contextlib.suppress(psutil.Error):
                found[choice % len(found)].send_signal(number)

    def find(self, name: str) -> list[psutil.Process]:
        """Finds the processes of a kind in the tree of the supervisor, in the order of their ids."""
        found = []
        with contextlib.suppress(psutil.Error):
            for process in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    words = process.cmdline()
                    self._note_folders(process, words)
                    is_controller = "benchmarks.faults_program" in words and process.ppid() == self.process.pid
                    kind = "controller" if is_controller and "run" not in words else process.name()
                    if kind.startswith(name):
                        found.append(process)
        return sorted(found, key=lambda process: process.pid)

    def _note_folders(self, process: psutil.Process, words: Sequence[str]) -> None:
        """Notes the temporary folders of an attempt, and that of its Ray, which must not be there at the end."""
        self.folders.add(process.environ().get("JAXQUARD_RUN_TMPDIR", ""))
        self.folders |= {
            os.path.dirname(word.removeprefix("--temp_dir=")) for word in words if word.startswith("--temp_dir=")
        }

    def close(self) -> None:
        """Ends the run, if it has not ended."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(EVENT_LIMIT_S)
        self._reader.join(EVENT_LIMIT_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            words = line.split()
            if len(words) == 3 and words[0] == "step":
                self.losses.setdefault(int(words[1]), set()).add(words[2])
            self._events.put(words)
        self._events.put(["ended"])


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", "PYTHONDONTWRITEBYTECODE": "", **more}


def kill_actor(run: DisturbedRun, fault: Fault) -> None:
    run.kill("ray::Worker", fault.choice)


def stop_actor(run: DisturbedRun, fault: Fault) -> None:
    run.kill("ray::Worker", fault.choice, signal.SIGSTOP)


def kill_raylet(run: DisturbedRun, fault: Fault) -> None:
    run.kill("raylet", fault.choice)


def kill_gcs(run: DisturbedRun, fault: Fault) -> None:
    run.kill("gcs_server", fault.choice)


def kill_controller(run: DisturbedRun, fault: Fault) -> None:
    run.kill("controller", fault.choice)


def fill_disk(run: DisturbedRun, fault: Fault) -> None:
    """Lets no file of the actors and the controller grow, as a full disk does: the next save fails, the program dies.

    A plain user cannot fill a disk. A limit on the size of files fails in the same calls, with EFBIG for ENOSPC.
    """
    limited = [*run.find("ray::Worker"), *run.find("controller")]
    run.forget_events()
    for process in limited:
        with contextlib.suppress(OSError):
            _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, hard))


def flip_bits(run: DisturbedRun, fault: Fault) -> None:
    """Kills the controller, and flips a bit of the newest checkpoint, any one, before it is read again.

    It waits until there are several: nobody recovers from damage to the only one.
    """
    while len(run.checkpoints) < KEPT_CHECKPOINTS:
        run.wait_for(lambda words: words[:1] == ["saving"])
    run.kill("controller", fault.choice)
    choose = random.Random(fault.choice)
    files = sorted(path for path in run.checkpoints[-1].rglob("*") if path.is_file() and path.stat().st_size)
    (path,) = choose.choices(files, weights=[path.stat().st_size for path in files])
    content = bytearray(path.read_bytes())
    content[choose.randrange(len(content))] ^= 1 << choose.randrange(8)
    path.write_bytes(content)


def kill_in_save(run: DisturbedRun, fault: Fault) -> None:
    """Kills an actor or the controller soon after a save has begun."""
    run.wait_for(lambda words: words[:1] == ["saving"])
    time.sleep(fault.delay_s / 4)
    kinds = [name for name in ("ray::Worker", "controller") if run.find(name)]
    run.kill(kinds[fault.choice % len(kinds)], fault.choice // 2)


def kill_in_restart(run: DisturbedRun, fault: Fault) -> None:
    """Kills an actor, and during the restart that follows another process."""
    run.kill("ray::Worker", fault.choice)
    run.wait_for(lambda words: words[:1] in (["restarting"], ["from"]))
    time.sleep(fault.delay_s * 4)
    run.kill(("ray::Worker", "controller", "raylet")[fault.choice % 3], fault.choice // 3)


OF_ANY_RUNTIME = ("kill controller", "full disk", "flipped bits", "kill during save")
"""Kinds that need no processes of Ray."""

FAULTS: dict[str, Callable[[DisturbedRun, Fault], None]] = {
    "kill actor": kill_actor,
    "stop actor": stop_actor,
    "kill raylet": kill_raylet,
    "kill gcs_server": kill_gcs,
    "kill controller": kill_controller,
    "full disk": fill_disk,
    "flipped bits": flip_bits,
    "kill during save": kill_in_save,
    "kill during restart": kill_in_restart,
}


def make_plan(num_faults: int, *, seed: int, kinds: Sequence[str] = tuple(FAULTS)) -> list[Fault]:
    """Draws faults: each kind about as often as the others, in any order, at any moment."""
    draw = random.Random(seed)
    order = [kind for _ in range(-(-num_faults // len(kinds))) for kind in draw.sample(kinds, len(kinds))]
    return [
        Fault(
            kind=kind,
            step=STEPS_BETWEEN * (number + 1) + draw.randrange(STEPS_BETWEEN),
            delay_s=draw.random() * 0.4,
            choice=draw.randrange(2**30),
        )
        for number, kind in enumerate(order[:num_faults])
    ]


def disturb(
    folder: Path,
    plan: Sequence[Fault],
    *,
    pause_s: float = 0.05,
    runtime: str = "ray",
    on_fault: Callable[[str], None] = print,
) -> FaultReport:
    """Runs the program, applies the plan, and checks all that must hold.

    Args:
        pause_s: after each step.
        runtime: of the program; "in_process" starts sooner, and has no actors and servers to kill.
    """
    report, start_s, num_steps = FaultReport(), time.monotonic(), 0
    run = DisturbedRun(folder, pause_s=pause_s, runtime=runtime)
    try:
        for fault in plan:
            _apply(fault, run, report, on_fault)
        num_steps = run.last_step + 2 * STEPS_BETWEEN
        run.end_after(num_steps)
        code = run.process.wait(EVENT_LIMIT_S)
        if code != 0:
            report.problems.append(f"the run ended with code {code}")
    except (EOFError, queue.Empty, subprocess.TimeoutExpired) as error:
        report.problems.append(f"{type(error).__name__}: {error}\n{run.log[-3000:]}")
    finally:
        run.close()
    report.time_s, log = time.monotonic() - start_s, run.log
    report.num_attempts, report.num_fallbacks = log.count(", process "), log.count("an earlier step is: ")
    report.problems += find_differences(run.losses, expected_losses(folder / "undisturbed", run.last_step + 1))
    if run.last_step + 1 < num_steps:
        report.problems.append(f"it ended after {run.last_step + 1} steps of {num_steps}")
    report.problems += _left_behind(run)
    return report


def _apply(fault: Fault, run: DisturbedRun, report: FaultReport, on_fault: Callable[[str], None]) -> None:
    run.wait_for(lambda words: words[:1] == ["step"] and run.last_step >= fault.step)
    time.sleep(fault.delay_s)
    before, start_s = run.last_step, time.monotonic()
    FAULTS[fault.kind](run, fault)
    before = max(before, run.last_step)
    run.wait_for(lambda words: words[:1] == ["from"])
    run.wait_for(lambda words: words[:1] == ["step"] and int(words[1]) > before)
    time_s = time.monotonic() - start_s
    report.recovery_s.setdefault(fault.kind, []).append(time_s)
    on_fault(f"step {before}: {fault.kind}, {time_s:.1f} s to the next new step")


def expected_losses(folder: Path, num_steps: int) -> dict[int, str]:
    """Returns the loss of each step of a run in one process that nothing disturbs."""
    folder.mkdir()
    (folder / "num_steps").write_text(str(num_steps))
    words = ("-m", "benchmarks.faults_program", str(folder), "--runtime", "in_process")
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment(), check=True)
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("step ")]
    return {int(number): loss for _, number, loss in lines}


def find_differences(found: dict[int, set[str]], expected: dict[int, str]) -> list[str]:
    wrong = [step for step, loss in expected.items() if found.get(step) != {loss}]
    return [f"the losses of {len(wrong)} steps differ or are missing, the first is step {wrong[0]}"] if wrong else []


def _left_behind(run: DisturbedRun) -> list[str]:
    processes = list_marked("JAXQUARD_RUN_ID", run.run_id)
    folders = [*map(str, (run.folder / "tmp").iterdir()), *filter(os.path.exists, run.folders - {""})]
    unfinished = [path.name for path in (run.folder / "work" / "checkpoints").glob(".*saving*")]
    return [
        f"left behind: {what}"
        for what in (
            *(f"process {process.pid}" for process in processes),
            *(f"folder {folder}" for folder in folders),
            *(f"unfinished save {name}" for name in unfinished),
        )
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=FAULTS, default=tuple(FAULTS))
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        plan = make_plan(args.faults, seed=args.seed, kinds=args.kinds)
        report = disturb(Path(folder), plan, on_fault=lambda line: print(line, flush=True))
    for kind, times in report.recovery_s.items():
        print(f"{kind:20} {len(times):4} times, recovered in {statistics.median(times):5.1f} s (median)")
    print(f"{args.faults} faults, {report.num_attempts} attempts, {report.time_s:.0f} s")
    print(f"{report.num_fallbacks} times a damaged checkpoint was left for the one before")
    print(*(report.problems or ["finished; all losses equal in every bit; nothing left behind"]), sep="\n")
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())
