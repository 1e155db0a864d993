"""The secret of a mesh, which its processes know and nobody else.

The controller makes it and gives it to the processes as an argument of a call. It is never in an environment variable,
on a command line, in a file or in a log; its `repr` does not show it.
"""

import contextlib
import hashlib
import os
import secrets
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field

from jaxquard.runtime.transports.peers.certificate import make_certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshSecret:
    """A key that processes prove to each other that they know, and the certificate of their TLS.

    Attributes:
        key: 32 random bytes.
        certificate: as PEM; all processes of the mesh have the same, and accept no other.
        private_key: of the certificate, as PEM.
    """

    key: bytes = field(repr=False)
    certificate: str = field(repr=False)
    private_key: str = field(repr=False)

    def number(self, purpose: bytes, message: bytes) -> int:
        """Computes a 64-bit number that only who knows the key can compute; purposes do not meet."""
        digest = hashlib.blake2b(message, digest_size=8, key=self.key, person=purpose)
        return int.from_bytes(digest.digest(), "little")

    def tls_context(self, *, is_server: bool) -> ssl.SSLContext:
        """Makes a context in which both sides show the mesh's certificate, and accept no other."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        # Who knows the private key is a peer, whatever its name is.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.certificate)
        with _memory_file((self.certificate + self.private_key).encode()) as path:
            context.load_cert_chain(path)
        if is_server:
            # A ticket would be something to read on a connection that is only written to.
            context.num_tickets = 0
        return context


def new_mesh_secret() -> MeshSecret:
    """Makes the secret of a new mesh."""
    certificate, private_key = make_certificate()
    return MeshSecret(key=secrets.token_bytes(32), certificate=certificate, private_key=private_key)


@contextlib.contextmanager
def _memory_file(content: bytes) -> Iterator[str]:
    """Gives a path to a file that is in memory alone: Python takes private keys from files only."""
    descriptor = os.memfd_create("jaxquard")
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
