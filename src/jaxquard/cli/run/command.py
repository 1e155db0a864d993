"""`jaxquard run`: the options, the folder of the run, and what is printed about it."""

import contextlib
import re
import secrets
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxquard.cli.console import count, print_json
from jaxquard.cli.exit_codes import FAILED, OK, UsageError, print_error, print_message
from jaxquard.cli.options import JsonOption
from jaxquard.cli.run.find_program import program_command
from jaxquard.errors import PREEMPTED_EXIT_CODE, InfeasibleError

if TYPE_CHECKING:
    from jaxquard.runtime.supervisor.supervise import RunResult


def run(
    program: Annotated[
        str, typer.Argument(metavar="PROGRAM", help="A Python file or an executable; with -m, a module.")
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS...", help="Everything after it goes to the program.")
    ] = None,
    is_module: Annotated[bool, typer.Option("-m", "--module", help="PROGRAM is a module, as for python -m.")] = False,
    max_restarts: Annotated[
        int, typer.Option(metavar="N", min=0, help="End after so many restarts without progress.")
    ] = 10,
    progress: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Progress is a change of this file or folder, such as that of the checkpoints.",
            show_default="an attempt of --stable-after",
        ),
    ] = None,
    stable_after: Annotated[
        float, typer.Option(metavar="S", min=0, help="Without --progress, an attempt of so many seconds is progress.")
    ] = 600.0,
    backoff: Annotated[
        float, typer.Option(metavar="S", min=0, help="Seconds before the first restart; doubled with each further one.")
    ] = 1.0,
    max_backoff: Annotated[float, typer.Option(metavar="S", min=0, help="The most seconds before a restart.")] = 60.0,
    grace: Annotated[
        float, typer.Option(metavar="S", min=0, help="Seconds to save and to end after SIGTERM or Ctrl-C.")
    ] = 30.0,
    output_timeout: Annotated[
        float | None,
        typer.Option(
            metavar="S", min=0, help="Restart a program that prints nothing for so many seconds.", show_default="never"
        ),
    ] = None,
    run_id: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="NAME", help="Name of the run; the log of an earlier one goes on.", show_default="the time"
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for runs; the log is DIR/NAME/log.txt.")] = Path(
        "runs"
    ),
    as_json: JsonOption = False,
) -> None:
    """Runs a training program, and starts it again from its last checkpoint when it dies.

    Ends every process that the program has started, and keeps one log. On SIGTERM the program has --grace seconds to
    save: the exit code is 75 if it did, 143 if not.

    Example: jaxquard run --progress checkpoints train.py --steps 1000
    """
    if sys.platform != "linux":
        raise InfeasibleError(f"jaxquard run needs Linux, but this is {sys.platform}. Start the program itself.")
    if output_timeout == 0:
        raise UsageError("--output-timeout should be more than 0 seconds. Leave it out for no limit.")
    command = program_command(program, arguments or [], is_module=is_module)
    from jaxquard.runtime.supervisor.restart_policy import RestartLimits
    from jaxquard.runtime.supervisor.supervise import RunOptions, supervise

    limits = RestartLimits(
        max_restarts=max_restarts, stable_after_s=stable_after, first_delay_s=backoff, max_delay_s=max_backoff
    )
    options = RunOptions(limits=limits, grace_s=grace, output_timeout_s=output_timeout, progress=progress)
    run_id = _checked_id(run_id)
    folder = _make_folder(out / run_id)
    _say(f"run {run_id}: log in {folder / 'log.txt'}")
    terminal = (2, 2) if as_json else (1, 2)
    try:
        result = supervise(command, run_id=run_id, folder=folder, options=options, on_event=_say, terminal=terminal)
    except BlockingIOError:
        raise UsageError(f"a run called {run_id} is under way. Wait for its end, or give another --id.") from None
    if as_json:
        print_json(_content(result))
    _print_end(result)
    raise typer.Exit(result.exit_code)


def _checked_id(run_id: str | None) -> str:
    if run_id is None:
        return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    if not re.fullmatch(r"[\w][\w.-]{0,99}", run_id):
        raise UsageError(f"--id should be letters, digits, '-', '_' and '.', at most 100, but is {run_id!r}.")
    return run_id


def _make_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "log.txt", "a"):
            pass
    except OSError as error:
        raise UsageError(
            f"cannot write {folder / 'log.txt'} ({error.strerror}). Give another folder with --out."
        ) from None
    return folder


def _print_end(result: "RunResult") -> None:
    restarts = count(len(result.endings) - 1, "restart")
    if result.exit_code == OK:
        _say(f"done after {restarts}")
    elif result.exit_code == FAILED:
        print_error(f"given up after {restarts}: {result.reason}. The log is {result.log}.")
    elif result.exit_code == PREEMPTED_EXIT_CODE:
        _say(f"{result.reason}; start the same command again to go on")
    else:
        _say(f"ended: {result.reason}")


def _say(text: str) -> None:
    """Prints a line, if the terminal is still there and takes it: training goes on without."""
    from jaxquard.runtime.supervisor.run_log import takes_output

    with contextlib.suppress(OSError):
        if takes_output(sys.stderr.fileno()):
            print_message(text)


def _content(result: "RunResult") -> dict[str, Any]:
    return {
        "run_id": result.run_id,
        "log": str(result.log),
        "exit_code": result.exit_code,
        "reason": result.reason,
        "attempts": [
            {
                "returncode": ending.returncode,
                "time_s": ending.time_s,
                "made_progress": ending.made_progress,
                "cause": ending.cause,
            }
            for ending in result.endings
        ],
    }
