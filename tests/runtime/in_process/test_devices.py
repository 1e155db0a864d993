import jax
import pytest

from jaxquard import _jax_compat
from jaxquard.errors import MeshError
from jaxquard.runtime.in_process.devices import make_cpu_devices


def test_each_actor_has_a_client_of_its_own():
    first, second = make_cpu_devices([2, 1])
    assert (len(first), len(second)) == (2, 1)
    assert first[0].client is first[1].client
    assert first[0].client is not second[0].client
    assert jax.devices("cpu")[0] not in (*first, *second)


def test_without_the_private_function_devices_are_split(monkeypatch):
    monkeypatch.setattr(_jax_compat, "make_cpu_clients", lambda num_devices: None)
    devices = jax.devices("cpu")
    assert make_cpu_devices([2, 1]) == (tuple(devices[:2]), (devices[2],))
    with pytest.raises(MeshError, match=r'needs 9 CPU devices, but this process has 8. Call jax.config.update\("jax'):
        make_cpu_devices([8, 1])
