"""A port that nobody has, for processes that are given it before they open it."""

import random
import socket


def free_port() -> int:
    """Below those that the system gives to connections, so that none takes it before the process has started."""
    while True:
        port = random.SystemRandom().randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
