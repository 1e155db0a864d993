"""Transports by name."""

import pytest

from jaxquard.errors import MeshError
from jaxquard.runtime.transports.open_transport import open_transport


def test_an_unknown_name_is_answered_with_the_list():
    with pytest.raises(MeshError) as caught:
        open_transport("pigeon", actor=0, ip="127.0.0.1")
    assert str(caught.value) == "there is no transport 'pigeon'. There are: transfer, collective."


@pytest.mark.parametrize(("name", "survives_loss"), [("transfer", True), ("collective", False)])
def test_it_listens_at_the_given_address(name, survives_loss):
    transport = open_transport(name, actor=0, ip="127.0.0.1")
    assert transport.address.startswith("127.0.0.1:")
    assert transport.survives_loss is survives_loss
    assert transport.report().waiting == ()
    transport.close()
