"""The one sentence that says how to install an optional package."""

from typing import Literal

# The optional dependencies of pyproject.toml that the library itself can ask for.
Extra = Literal["checkpoint", "cuda-compiler", "demo", "ray", "tpu"]


def install_hint(extra: Extra) -> str:
    """The command that installs an extra, in the forms for an installation and for a checkout.

    Example:
        >>> install_hint("ray")
        "Run: pip install 'jaxquard[ray]', or '.[ray]' in a checkout."
    """
    return f"Run: pip install 'jaxquard[{extra}]', or '.[{extra}]' in a checkout."
