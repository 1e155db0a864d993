"""Imports Ray when it is first needed: `import jaxquard` must not cost it, nor require it."""

import importlib
from types import ModuleType

from jaxquard._install_hint import install_hint
from jaxquard.errors import MeshError


def import_ray() -> ModuleType:
    """The `ray` module.

    Raises:
        MeshError: if Ray is not installed; the message says what to install.
    """
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise MeshError(f'runtime="ray" needs Ray, which is not installed. {install_hint("ray")}') from None
