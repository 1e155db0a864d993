"""What of the controller's JAX the processes of the actors take over.

What changes the code of a task is in the exported code already. What is left is how it is compiled, and where compiled
code is kept.
"""

import os
import re
from typing import Any

import jax

_SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
    "jax_enable_compilation_cache",
    "jax_debug_nans",
)
_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION")
# The actors have their own number of devices.
_DEVICE_COUNT = re.compile(r"--xla_force_host_platform_device_count=\S+")


def settings_to_pass_on() -> tuple[tuple[str, Any], ...]:
    """Settings of JAX, by name."""
    return tuple((name, getattr(jax.config, name)) for name in _SETTINGS if hasattr(jax.config, name))


def variables_to_pass_on() -> tuple[tuple[str, str], ...]:
    """Environment variables that XLA reads when a backend starts."""
    found = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    if "XLA_FLAGS" in found:
        found["XLA_FLAGS"] = _DEVICE_COUNT.sub("", found["XLA_FLAGS"]).strip()
    return tuple(found.items())
