"""JAX's persistent compilation cache in a folder of ours, for a while."""

import contextlib
from collections.abc import Iterator

import jax
from jax.experimental.compilation_cache import compilation_cache

_SETTINGS = {
    "jax_enable_compilation_cache": True,
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
    "jax_raise_persistent_cache_errors": False,
}


@contextlib.contextmanager
def use_compilation_folder(folder: str) -> Iterator[None]:
    """Within, executables come from the folder and go to it; after, the user's own cache is back."""
    wanted: dict[str, object] = {**_SETTINGS, "jax_compilation_cache_dir": folder}
    before = {name: getattr(jax.config, name) for name in wanted}
    _set(wanted)
    try:
        yield
    finally:
        _set(before)


def _set(values: dict[str, object]) -> None:
    for name, value in values.items():
        jax.config.update(name, value)
    # JAX looks at the folder once; after this it looks again.
    compilation_cache.reset_cache()
