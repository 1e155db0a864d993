"""A process that compiles for another: `python -m jaxquard.pricing.compile.compile_worker FD FOLDER NUM_DEVICES`.

It reads requests (`_jax_compat.compile_request`) from a connection and leaves what it has compiled in the folder, as
JAX's persistent compilation cache; the other process then finds it there. It says when it is ready, so that one which
cannot start differs from one that a program has ended. To each request it answers "" or what the compiler says against
it, with the seconds of the processor that it took (others may share the cores), and it ends when the connection does.
"""

import os
import sys
import time
from multiprocessing.connection import Connection

import jax

from jaxquard import _jax_compat
from jaxquard.pricing.compile.compilation_folder import use_compilation_folder


def main(descriptor: int, folder: str, num_devices: int) -> None:
    """Serves until the other end closes."""
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", num_devices)
    connection = Connection(descriptor)
    connection.send_bytes(b"ready")
    with use_compilation_folder(folder):
        while True:
            try:
                request = connection.recv_bytes()
            except EOFError:
                return
            start_s = time.process_time()
            said = _answer(request)
            connection.send((said, time.process_time() - start_s))


def _answer(request: bytes) -> str:
    try:
        _jax_compat.compile_into_cache(request)
    except jax.errors.JaxRuntimeError as error:
        return str(error) or type(error).__name__
    except Exception:  # Our own trouble, say with another version of JAX: the other process compiles for itself.
        return ""
    return ""


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
