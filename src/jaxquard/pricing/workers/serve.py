"""The end of a worker: a process that answers requests over a connection, one after the other.

It says when it is ready, so that one which cannot start differs from one that a request has ended. It ends when the
connection does, or when its parent is gone, whatever it does then.
"""

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

_PARENT_CHECK_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer to a request, or to a part of it.

    Attributes:
        error: what went wrong; "" if nothing did.
        work_s: of the processor, for this answer; others may share the cores.
    """

    value: Any = None
    error: str = ""
    work_s: float = 0.0


def reply(answer: Callable[[], Any]) -> Reply:
    """Returns what a function returns, or the error that it raises, as a reply."""
    try:
        return Reply(value=answer())
    except Exception as error:
        return Reply(error=text_of_error(error))


def text_of_error(error: Exception) -> str:
    """Returns the text of an error, or its type where it says nothing."""
    return str(error).strip() or type(error).__name__


def serve(descriptor: int, begin: Callable[[], tuple[Any, Callable[[Any], Iterable[Reply]]]]) -> None:
    """Serves until the other end closes.

    Args:
        begin: returns a greeting, and the function that answers requests.
    """
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    connection = Connection(descriptor)
    try:
        greeting, answer = begin()
    except Exception as error:
        traceback.print_exc()
        connection.send(Reply(error=text_of_error(error)))
        return
    connection.send(Reply(value=greeting))
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        start_s = time.process_time()
        for made in answer(request):
            now_s = time.process_time()
            connection.send(replace(made, work_s=now_s - start_s))
            start_s = now_s


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_S)
    os._exit(1)
