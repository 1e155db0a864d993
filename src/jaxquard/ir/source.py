"""Where in the user's code a call was made, for errors that name the line."""

import os
import sys

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def user_line() -> str:
    """`train.py:41`: the nearest caller outside jaxquard and JAX."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if not os.path.abspath(path).startswith(_OURS) and package not in (
            "jax",
            "jaxlib",
            "flax",
            "equinox",
        ):
            return f"{os.path.basename(path)}:{frame.f_lineno}"
        frame = frame.f_back
    return "unknown line"
