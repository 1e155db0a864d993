"""A listener among strangers: it admits its peers and nobody else, and strangers cost it little."""

import os
import queue
import ssl
import stat
import tempfile
import threading
import time
from pathlib import Path

import pytest

from jaxquard.runtime.transports.peers import dial as dialing
from jaxquard.runtime.transports.peers import listener as listening
from jaxquard.runtime.transports.peers.connection import hang_up_socket
from jaxquard.runtime.transports.peers.dial import dial
from jaxquard.runtime.transports.peers.handshake import HandshakeError
from jaxquard.runtime.transports.peers.links import PeerLinks
from jaxquard.runtime.transports.peers.listener import PeerListener
from jaxquard.runtime.transports.peers.secret import new_mesh_secret
from tests.runtime.transports.peers.strangers import (
    besiege,
    connect,
    connect_with_other_certificate,
    nonsense,
    open_sockets,
)
from tests.slow_but_for import slow_but_for

SECRET = new_mesh_secret()
HOSTS = [None, "127.0.0.1"]
# Which one it is depends on who sees it first: TLS, the socket or the handshake.
ANY_LOSS = (ConnectionError, ssl.SSLError)


@pytest.fixture(params=HOSTS)
def host(request):
    return request.param


@pytest.fixture
def admitted():
    return queue.Queue()


@pytest.fixture
def listener(host, tmp_path, admitted):
    listener = PeerListener(
        0, secret=SECRET, host=host, folder=str(tmp_path), on_peer=lambda peer, end: admitted.put((peer, end))
    )
    yield listener
    listener.close()
    while not admitted.empty():
        admitted.get()[1].close()


def reach(listener):
    """The address as a peer on another host sees it, if there is one."""
    return listener.address.partition(",unix:")[0]


def wait_for(condition, limit_s=60.0):
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def num_handshakes():
    return sum(thread.name == "jaxquard-handshake" for thread in threading.enumerate())


def test_a_peer_is_admitted(listener, admitted):
    connection = dial(reach(listener), source=5, target=0, secret=SECRET)
    peer, end = admitted.get(timeout=30)
    connection.write(b"hello")
    assert (peer, end.read(5)) == (5, b"hello")
    connection.close()
    with pytest.raises(ANY_LOSS):
        end.read(1)
    end.close()


def test_a_process_of_another_mesh_is_not(listener, admitted, monkeypatch):
    monkeypatch.setattr(dialing, "_LIMIT_S", 0.1)
    with pytest.raises(ANY_LOSS):
        dial(reach(listener), source=5, target=0, secret=new_mesh_secret())
    wait_for(lambda: listener.num_refused)
    assert admitted.empty()


def test_its_socket_is_in_a_folder_of_this_user(listener, tmp_path):
    (folder,) = tmp_path.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "peers").stat().st_mode) == 0o600
    assert folder.stat().st_uid == os.getuid()
    listener.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o777])
def test_a_folder_that_others_can_enter_is_not_used(mode):
    """They could put a folder of theirs in the place of ours. Ray's own folders are open to everybody."""
    with tempfile.TemporaryDirectory(dir="/tmp") as outer:
        inner = Path(outer, "inner")
        inner.mkdir()
        inner.chmod(0o777)
        Path(outer).chmod(mode)
        assert listening.is_out_of_reach(inner) is (mode == 0o700)
        listener = PeerListener(0, secret=SECRET, host=None, folder=str(inner), on_peer=lambda *_: None)
        assert bool(list(inner.iterdir())) is (mode == 0o700)
        assert Path(listener.address.removeprefix("unix:")).exists()
        listener.close()


def test_a_path_of_any_length_will_do(tmp_path, admitted):
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    listener = PeerListener(0, secret=SECRET, host=None, folder=str(folder), on_peer=lambda *peer: admitted.put(peer))
    dial(listener.address, source=1, target=0, secret=SECRET).close()
    admitted.get(timeout=30)[1].close()
    listener.close()


def test_another_certificate_is_refused(tmp_path, admitted):
    listener = PeerListener(
        0, secret=SECRET, host="127.0.0.1", folder=str(tmp_path), on_peer=lambda *peer: admitted.put(peer)
    )
    with pytest.raises(ANY_LOSS):
        connect_with_other_certificate(reach(listener))
    with pytest.raises(HandshakeError, match="does not have the certificate of this mesh"):
        dial(reach(listener), source=1, target=0, secret=new_mesh_secret())
    listener.close()
    assert admitted.empty()


def test_slow_strangers_are_dropped(listener, admitted, monkeypatch):
    monkeypatch.setattr(listening, "HANDSHAKE_S", 0.3)
    slow = [connect(reach(listener)) for _ in range(8)]
    until_s = time.monotonic() + 60
    while listener.num_refused < len(slow) and time.monotonic() < until_s:
        for plain in slow:
            try:
                plain.send(b"\0")
            except OSError:
                break
        time.sleep(0.1)
    assert listener.num_refused == len(slow), "one byte now and then keeps nobody connected"
    for plain in slow:
        plain.close()
    assert admitted.empty()


def test_a_crowd_of_strangers_keeps_no_peer_out(listener, admitted, monkeypatch):
    monkeypatch.setattr(listening, "HANDSHAKE_S", 600.0)  # Nobody goes because of being late.
    crowd = [connect(reach(listener)) for _ in range(3 * listening._MAX_STRANGERS)]
    dial(reach(listener), source=2, target=0, secret=SECRET).close()
    peer, end = admitted.get(timeout=30)
    end.close()
    assert peer == 2
    wait_for(lambda: num_handshakes() <= listening._MAX_STRANGERS)
    for plain in crowd:
        plain.close()


def test_a_peer_that_a_crowd_drops_as_it_proves_itself_tries_again(listener, admitted, monkeypatch):
    """It must not hear that it is admitted: its connection would end later, as if its process had."""
    take_out, dropped = PeerListener._take_out, []

    def drop_first(self, stranger):
        if not dropped:
            dropped.append(self._crowd())
            hang_up_socket(stranger.connection)
        take_out(self, stranger)

    monkeypatch.setattr(PeerListener, "_take_out", drop_first)
    connection = dial(reach(listener), source=4, target=0, secret=SECRET)
    peer, end = admitted.get(timeout=30)
    connection.write(b"hello")
    assert (peer, end.read(5), len(dropped)) == (4, b"hello", 1)
    wait_for(lambda: listener.num_refused == 1)
    connection.close()
    end.close()


@pytest.mark.parametrize("count", slow_but_for([200, 10_000], [200]))
def test_nonsense_does_no_harm(listener, admitted, count):
    """No crash, nothing admitted, nothing kept; a peer still gets in, during and after."""
    sockets, address = open_sockets(), reach(listener)
    siege = threading.Thread(target=besiege, args=(address,), kwargs={"count": count, "seed": count})
    siege.start()
    connection = dial(address, source=1, target=0, secret=SECRET)
    peer, end = admitted.get(timeout=60)
    siege.join(600)
    assert not siege.is_alive()
    connection.write(b"still here")
    assert (peer, end.read(10)) == (1, b"still here")
    connection.close()
    end.close()
    assert admitted.empty()
    wait_for(lambda: not num_handshakes())
    wait_for(lambda: open_sockets() <= sockets)
    dial(address, source=3, target=0, secret=SECRET).close()
    peer, end = admitted.get(timeout=30)
    end.close()
    assert peer == 3


def test_links_stop_listening_once_all_peers_are_there(host, tmp_path):
    heard, links = queue.Queue(), []
    for actor in range(3):
        links.append(
            PeerLinks(
                actor,
                secret=SECRET,
                host=host,
                folder=str(tmp_path),
                read=lambda peer, end, actor=actor: heard.put((actor, peer, end.read(2))),
                on_lost=lambda peer, error: None,
            )
        )
    addresses = [link.address for link in links]
    threads = [
        threading.Thread(target=link.connect, args=({a: t for a, t in enumerate(addresses) if a != actor},))
        for actor, link in enumerate(links)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    wait_for(lambda: not list(tmp_path.iterdir()))
    for address in addresses:
        wait_for(lambda address=address: cannot_connect(address))
    for actor, link in enumerate(links):
        for peer in {0, 1, 2} - {actor}:
            link.write(peer, b"hi")
    assert {heard.get(timeout=30)[:2] for _ in range(6)} == {(a, b) for a in range(3) for b in range(3) if a != b}
    for link in links:
        link.close()


def cannot_connect(address):
    try:
        connect(address.partition(",unix:")[0], timeout_s=1).close()
    except OSError:
        return True
    return False


def test_strangers_try_much():
    import random

    generator = random.Random(0)
    assert len({nonsense(generator) for _ in range(300)}) > 100
