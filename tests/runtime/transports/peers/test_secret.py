"""The secret of a mesh: nobody sees it by accident, and what it makes differs from mesh to mesh."""

import pickle
import socket
import ssl
import threading

import pytest

from jaxquard.runtime.transports.peers.secret import MeshSecret, new_mesh_secret

SECRETS = [new_mesh_secret() for _ in range(3)]


def test_meshes_have_different_secrets():
    assert len({secret.key for secret in SECRETS}) == 3
    assert all(len(secret.key) == 32 for secret in SECRETS)
    assert len({secret.certificate for secret in SECRETS}) == len({secret.private_key for secret in SECRETS}) == 3


def test_its_text_does_not_show_it():
    (secret, *_) = SECRETS
    assert repr(secret) == str(secret) == "MeshSecret()"


def test_it_can_be_sent_with_a_call():
    assert pickle.loads(pickle.dumps(SECRETS[0])) == SECRETS[0]


def test_numbers_depend_on_the_key_the_purpose_and_the_message():
    numbers = {
        secret.number(purpose, message) for secret in SECRETS for purpose in (b"a", b"b") for message in (b"", b"1")
    }
    assert len(numbers) == 12
    assert all(0 <= number < 2**64 for number in numbers)


def shake_tls(server: MeshSecret, client: MeshSecret) -> list[str | None]:
    """Shakes hands and sends a byte each way; for both sides the error, or None."""
    ends = socket.socketpair()
    errors: list[str | None] = [None, None]

    def run(side: int, secret: MeshSecret) -> None:
        context = secret.tls_context(is_server=side == 0)
        try:
            with context.wrap_socket(ends[side], server_side=side == 0) as wrapped:
                wrapped.sendall(b"x")
                assert wrapped.recv(1) == b"x"
                assert wrapped.version() == "TLSv1.3"
        except (ssl.SSLError, OSError) as error:
            errors[side] = type(error).__name__

    threads = [threading.Thread(target=run, args=pair) for pair in ((0, server), (1, client))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return errors


def test_openssl_takes_its_certificate():
    assert shake_tls(SECRETS[0], SECRETS[0]) == [None, None]


@pytest.mark.parametrize("swapped", [False, True])
def test_openssl_refuses_that_of_another_mesh(swapped):
    mixed = (
        SECRETS[0],
        MeshSecret(key=SECRETS[0].key, certificate=SECRETS[1].certificate, private_key=SECRETS[1].private_key),
    )
    errors = shake_tls(*(mixed[::-1] if swapped else mixed))
    assert all(errors), errors
