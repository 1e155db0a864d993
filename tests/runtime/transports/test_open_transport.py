"""Transports by name."""

import pytest

from jaxquard.errors import MeshError
from jaxquard.runtime.transports.open_transport import open_transport
from jaxquard.runtime.transports.peers.secret import new_mesh_secret


def test_an_unknown_name_is_answered_with_the_list():
    with pytest.raises(MeshError) as caught:
        open_transport("pigeon", actor=0, ip="127.0.0.1", secret=new_mesh_secret())
    assert str(caught.value) == "there is no transport 'pigeon'. There are: stream, transfer, collective."


@pytest.mark.parametrize(
    ("name", "survives_loss", "address"),
    [
        ("stream", True, "unix:{folder}/jq-"),
        ("transfer", True, "127.0.0.1:"),
        ("collective", False, "unix:{folder}/jq-"),
    ],
)
def test_it_listens_at_the_given_address(name, survives_loss, address, tmp_path):
    transport = open_transport(name, actor=0, ip="127.0.0.1", secret=new_mesh_secret(), folder=str(tmp_path))
    assert transport.address.startswith(address.format(folder=tmp_path))
    assert transport.survives_loss is survives_loss
    assert transport.report().waiting == ()
    transport.close()
