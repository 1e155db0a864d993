"""Imports Ray when it is first needed, and calls it without its side effects on this process.

`import jaxquard` must neither cost nor require Ray. Calls to it leave no lines on the console, no signal handler and no
environment variables behind.
"""

import contextlib
import importlib
import logging
import os
import signal
import threading
import warnings
from collections.abc import Iterator, Mapping
from types import ModuleType

from jaxquard._install_hint import install_hint
from jaxquard.errors import MeshError


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keeps Ray from writing to the console; errors still come as exceptions."""
    logger = logging.getLogger("ray")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            # Ray forks and at once executes another program, which is safe with JAX's threads.
            warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called", category=RuntimeWarning)
            warnings.filterwarnings("ignore", category=FutureWarning, module=r"ray\.")
            yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def kept_settings() -> Iterator[None]:
    """Restores what `ray.init` changes for the whole process: the handler of SIGTERM and the debugger."""
    with environment({"PYTHONBREAKPOINT": os.environ.get("PYTHONBREAKPOINT")}):
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        handler = signal.getsignal(signal.SIGTERM)
        try:
            yield
        finally:
            # None: a handler that was not installed from Python, which Python cannot put back.
            if handler is not None:
                signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    """Sets environment variables, or unsets those given as None, and puts the old ones back."""
    before = {name: os.environ.get(name) for name in variables}
    _set_environment(variables)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def import_ray() -> ModuleType:
    """Imports the `ray` module.

    Raises:
        MeshError: if Ray is not installed; the message says what to install.
    """
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise MeshError(f'runtime="ray" needs Ray, which is not installed. {install_hint("ray")}') from None
