"""Settings of the controller's JAX that its actors get: when they start, and whenever one has changed since.

Settings that change the code of a task (64-bit values, the precision of products, random keys) are in the exported code
already. What is left is how a task is compiled, where compiled code is kept, and what is checked when it runs. A
setting that JAX reads once, before its first use, cannot change later here either.
"""

import os
import re
from typing import Any

import jax

_SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_compilation_cache_max_size",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
    "jax_persistent_cache_enable_xla_caches",
    "jax_raise_persistent_cache_errors",
    "jax_enable_compilation_cache",
    "jax_disable_most_optimizations",
    "jax_optimization_level",
    "jax_exec_time_optimization_effort",
    "jax_memory_fitting_effort",
    "jax_log_compiles",
    "jax_debug_nans",
    "jax_debug_infs",
)
_VARIABLES = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "XLA_PYTHON_CLIENT_PREALLOCATE", "XLA_PYTHON_CLIENT_MEM_FRACTION")
# The actors have their own number of devices.
_DEVICE_COUNT = re.compile(r"--xla_force_host_platform_device_count=\S+")

Settings = tuple[tuple[str, Any], ...]


def settings_to_pass_on() -> Settings:
    """Returns the settings of JAX that actors get, by name."""
    return tuple((name, getattr(jax.config, name)) for name in _SETTINGS if hasattr(jax.config, name))


def variables_to_pass_on() -> tuple[tuple[str, str], ...]:
    """Returns the environment variables that XLA reads when a backend starts."""
    found = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    if "XLA_FLAGS" in found:
        found["XLA_FLAGS"] = _DEVICE_COUNT.sub("", found["XLA_FLAGS"]).strip()
    return tuple(found.items())
