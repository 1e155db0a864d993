"""Programs that die, hang and are stopped, under the supervisor. They import nothing that takes time."""

import os
import signal
import sys
from pathlib import Path

import pytest

from tests.runtime.supervisor.supervised import Supervised, answer, end, is_running, run, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the supervisor needs Linux")

DIES = """
import os, signal, sys
restart = int(os.environ["JAXQUARD_RESTART"])
print("attempt", restart, *sys.argv[1:])
if restart == 0:
    raise ValueError("no data")
if restart == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if restart == 2:
    os.abort()
"""
WAITS = """
import os, signal, sys, time
{handlers}
print(os.getpid(), flush=True)
time.sleep(100)
"""
# A daemon: a session of its own, and a parent that has ended. It does not heed SIGTERM.
DAEMON = """
import os, signal, subprocess, sys, time
daemon = '''
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
open("ready", "w").close()
time.sleep(100)
'''
start = "import subprocess, sys; subprocess.Popen([sys.executable, '-S', '-c', sys.argv[1]], start_new_session=True)"
subprocess.run([sys.executable, "-S", "-c", start, daemon], start_new_session=True)
while not os.path.exists("ready"):
    time.sleep(0.01)
"""
SAVES = "signal.signal(signal.SIGTERM, lambda *_: (print('saved'), sys.exit(75)))"
GOES_ON = "signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGINT, signal.SIG_IGN)"


def test_a_program_that_dies_is_started_again_until_it_is_done(tmp_path):
    supervised = Supervised(tmp_path, DIES, "--save", "x", "--json", "--traceback")
    code, out, err = supervised.finish()
    assert code == 0, err
    assert out.splitlines() == [f"attempt {number} --save x --json --traceback" for number in range(4)]
    assert "ValueError: no data\n" in err
    assert "restart 1 of 10 in 0.01 s: exit code 1 (ValueError: no data)\n" in err
    assert "restart 2 of 10 in 0.02 s: SIGKILL" in err
    assert "restart 3 of 10 in 0.04 s: SIGABRT" in err
    assert err.endswith("done after 3 restarts\n")
    assert supervised.temporary == []


def test_one_log_has_everything(tmp_path):
    run(tmp_path, DIES)
    code, _, _ = run(tmp_path, "import sys\nprint('later', end='')\n")
    log = (tmp_path / "runs" / "test" / "log.txt").read_text()
    assert code == 0
    lines = [line.partition("] ")[2] or line for line in log.splitlines()]
    starts = [line for line in lines if line.startswith("attempt ") and ", process " in line]
    assert [line.partition(",")[0] for line in starts] == [
        "attempt 1",
        "attempt 2",
        "attempt 3",
        "attempt 4",
        "attempt 1",
    ]
    assert all(line.endswith("program.py") for line in starts)
    assert "ValueError: no data" in lines
    assert any(line.startswith("attempt 1 ended after ") and line.endswith("(ValueError: no data)") for line in lines)
    assert lines[-3:-1] == ["later", lines[-2]]
    assert lines[-1] == "the run ends with code 0: done"


@pytest.mark.slow
def test_the_environment_of_the_program(tmp_path):
    source = """
import os, tempfile
folder = os.environ["JAXQUARD_RUN_TMPDIR"]
open(tempfile.mkstemp()[1], "w").write("left")
print(os.environ["JAXQUARD_RUN_ID"], os.environ["JAXQUARD_RUN_FOLDER"], len(folder), tempfile.gettempdir())
print(os.path.isdir(folder), folder, os.getsid(0) == os.getpid())
"""
    supervised = Supervised(tmp_path, source)
    code, out, err = supervised.finish()
    assert code == 0, err
    run_id, folder, length, temporary, exists, short, leads = out.split()
    assert (run_id, folder) == ("test", str(tmp_path / "runs" / "test"))
    assert temporary.startswith(str(tmp_path / "tmp"))
    assert (exists, leads) == ("True", "True")
    # Ray's sockets: 107 bytes at most, of which 87 are below this folder.
    assert int(length) <= 20 or not short.startswith("/tmp")
    assert supervised.temporary == []
    assert run(tmp_path, f"import os; print(os.path.exists({short!r}))")[1] == "False\n"


def test_the_limit_of_restarts(tmp_path):
    source = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    code, out, err = run(tmp_path, source, options=("--max-restarts", 2, "--json"))
    assert code == 1
    assert len(answer(out)["attempts"]) == 3
    assert "error: given up after 2 restarts: SIGKILL" in err
    assert err.endswith("after 2 restarts without progress. The log is runs/test/log.txt.\n")


@pytest.mark.slow
def test_progress_resets_the_limit(tmp_path):
    source = """
import os, pathlib, signal
restart = int(os.environ["JAXQUARD_RESTART"])
if restart < 6:
    folder = pathlib.Path("checkpoints")
    folder.mkdir(exist_ok=True)
    (folder / f".step-{restart}.saving").touch()
    if restart % 2:
        (folder / f"step-{restart}").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    options = ("--max-restarts", 2, "--progress", "checkpoints", "--json")
    code, out, err = run(tmp_path, source, options=options)
    assert code == 0, err
    assert [each["made_progress"] for each in answer(out)["attempts"]] == [False, True, False, True, False, True, False]
    assert run(tmp_path, source.replace("restart % 2", "restart % 4"), options=(*options, "--max-restarts", 0))[0] == 1


def test_a_program_that_fails_alike_each_time_ends_soon(tmp_path):
    code, _, err = run(tmp_path, "import no_such_module")
    assert code == 1
    assert err.count("Traceback") == 3
    assert (
        "error: given up after 2 restarts: it failed 3 times in the same way, each time at once: exit code 1 "
        "(ModuleNotFoundError: No module named 'no_such_module')." in err
    )


def test_with_json_the_output_of_the_program_goes_to_stderr(tmp_path):
    code, out, err = run(tmp_path, "print('loss 1')", options=["--json"])
    content = answer(out)
    assert code == content["exit_code"] == 0
    assert content["run_id"] == "test"
    assert content["attempts"][0]["returncode"] == 0
    assert "loss 1\n" in err


def test_sigterm_lets_the_program_save(tmp_path):
    supervised = Supervised(tmp_path, WAITS.format(handlers=SAVES))
    supervised.read_line()
    supervised.send(signal.SIGTERM)
    code, out, err = supervised.finish()
    assert (code, out) == (75, "saved\n")
    assert "SIGTERM: the program has 30 s to end\n" in err
    assert err.endswith("preempted; the program saved its state; start the same command again to go on\n")


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129), (signal.SIGUSR1, 138)],
    ids=lambda each: getattr(each, "name", str(each)),
)
def test_a_signal_that_ends_the_program_ends_the_run(tmp_path, number, code):
    supervised = Supervised(tmp_path, WAITS.format(handlers=""))
    pid = int(supervised.read_line())
    supervised.send(number)
    assert supervised.finish()[0] == code
    assert not is_running(pid)
    assert f"the run ends with code {code}" in supervised.log


@pytest.mark.slow
def test_two_runs_of_one_name(tmp_path):
    first = Supervised(tmp_path, WAITS.format(handlers=""))
    first.read_line()
    code, _, err = run(tmp_path, "print(1)")
    assert code == 2
    assert err.endswith("error: a run called test is under way. Wait for its end, or give another --id.\n")
    first.send(signal.SIGTERM)
    assert first.finish()[0] == 143
    assert run(tmp_path, "print(1)")[0] == 0


def test_signals_are_forwarded(tmp_path):
    source = """
import os, signal, time
seen = []
for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
    signal.signal(number, lambda number, frame: (seen.append(number), print(signal.Signals(number).name, flush=True)))
print("ready", flush=True)
while len(seen) < 3:
    time.sleep(0.01)
"""
    supervised = Supervised(tmp_path, source)
    assert supervised.read_line() == "ready"
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        supervised.send(number)
        assert supervised.read_line() == number.name
    assert supervised.finish()[0] == 0


@pytest.mark.slow
def test_after_the_grace_time_the_program_is_killed(tmp_path):
    supervised = Supervised(tmp_path, WAITS.format(handlers=GOES_ON), options=("--grace", 0.3))
    pid = int(supervised.read_line())
    supervised.send(signal.SIGTERM)
    assert supervised.finish()[0] == 143
    assert not is_running(pid)


def test_a_second_interrupt_kills_at_once(tmp_path):
    supervised = Supervised(tmp_path, WAITS.format(handlers=GOES_ON), options=("--grace", 3600))
    pid = int(supervised.read_line())
    supervised.send(signal.SIGINT)
    wait_until(lambda: "SIGINT" in supervised.log)
    assert is_running(pid)
    supervised.send(signal.SIGINT)
    assert supervised.finish()[0] == 130
    assert not is_running(pid)


def test_a_signal_before_a_restart_ends_the_run(tmp_path):
    supervised = Supervised(tmp_path, "1 / 0", options=("--backoff", 3600, "--max-backoff", 3600))
    wait_until(lambda: (tmp_path / "runs" / "test" / "log.txt").exists() and "restart 1" in supervised.log)
    supervised.send(signal.SIGTERM)
    assert supervised.finish()[0] == 143


def test_the_program_itself_is_preempted(tmp_path):
    """Schedulers differ in whom they send SIGTERM."""
    assert run(tmp_path, "raise SystemExit(75)")[0] == 75


def test_daemons_are_ended(tmp_path):
    daemon = DAEMON.replace("signal.signal(signal.SIGTERM, signal.SIG_IGN)", "")
    dies = "os.kill(os.getpid(), 9)"
    supervised = Supervised(tmp_path, daemon + dies, options=("--max-restarts", 0))
    pid = int(supervised.read_line())
    try:
        assert supervised.finish()[0] == 1
        assert not is_running(pid)
    finally:
        end(pid)


def test_a_supervisor_that_is_killed_takes_everything_with_it(tmp_path):
    supervised = Supervised(
        tmp_path, DAEMON + WAITS.format(handlers=SAVES + "; time.sleep(0.3)"), options=("--grace", 20)
    )
    pids = [int(supervised.read_line()) for _ in range(2)]
    try:
        supervised.process.kill()
        wait_until(lambda: not any(map(is_running, pids)))
        wait_until(lambda: supervised.temporary == [])
        assert supervised.process.stdout.read() == ""  # nobody holds the terminal
    finally:
        supervised.finish()
        for pid in pids:
            end(pid)


@pytest.mark.slow
def test_a_guard_that_is_killed_is_replaced(tmp_path):
    supervised = Supervised(tmp_path, DAEMON + WAITS.format(handlers=""), options=("--grace", 20))
    pids = [int(supervised.read_line()) for _ in range(2)]
    supervisor = supervised.process.pid

    def guards():
        text = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text()
        return {pid for pid in map(int, text.split()) if pid not in pids and is_running(pid)}

    try:
        (guard,) = guards()
        os.kill(guard, signal.SIGKILL)
        wait_until(lambda: guards() - {guard})
        supervised.process.kill()
        wait_until(lambda: not any(map(is_running, pids)))
    finally:
        supervised.finish()
        for pid in pids:
            end(pid)


@pytest.mark.slow
def test_a_program_without_output_hangs(tmp_path):
    source = """
import os, time
def waits_for_ever():
    print(os.environ["JAXQUARD_RESTART"])
    time.sleep(100 if os.environ["JAXQUARD_RESTART"] == "0" else 0)
waits_for_ever()
"""
    # As long as Python may take to start on a busy machine.
    code, out, err = run(tmp_path, source, options=("--output-timeout", 4))
    assert (code, out) == (0, "0\n1\n")
    assert "in waits_for_ever" in err  # where it hung
    assert "restart 1 of 10 in 0.01 s: no output for 4 s\n" in err


def test_a_reader_that_leaves_does_not_end_the_run(tmp_path):
    source = """
import os
for number in range(3000):
    print("step", number)
"""
    supervised = Supervised(tmp_path, source)
    supervised.read_line()
    supervised.process.stdout.close()
    supervised.process.stderr.close()
    assert supervised.process.wait(60) == 0
    assert "step 2999\n" in supervised.log
