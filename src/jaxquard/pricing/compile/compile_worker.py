"""A process that compiles for another: `python -m jaxquard.pricing.compile.compile_worker FD FOLDER NUM_DEVICES`.

A request is what `_jax_compat.compile_request` makes. It leaves what it has compiled in the folder, as JAX's persistent
compilation cache; the other process then finds it there. The error of a reply is what the compiler says against it.
"""

import sys
from collections.abc import Iterator

import jax

from jaxquard import _jax_compat
from jaxquard.pricing.compile.compilation_folder import use_compilation_folder
from jaxquard.pricing.workers.serve import Reply, serve, text_of_error


def main(descriptor: int, folder: str, num_devices: int) -> None:
    """Serves until the other end closes."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", num_devices)
    with use_compilation_folder(folder):
        serve(descriptor, lambda: (None, _answer))


def _answer(request: bytes) -> Iterator[Reply]:
    error = ""
    try:
        _jax_compat.compile_into_cache(request)
    except jax.errors.JaxRuntimeError as raised:
        error = text_of_error(raised)
    except Exception:
        pass
    yield Reply(error=error)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
