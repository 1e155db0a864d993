import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxquard.pricing.measure.runs.make_inputs import InputMaker, make_host_input, make_input
from tests.pricing.programs import array, line_mesh


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16, jnp.float8_e4m3fn, jnp.complex64])
def test_floats_are_small_and_positive(dtype):
    values = np.asarray(make_input(array(16, 4, dtype=dtype), NamedSharding(line_mesh(), P("x"))))
    assert values.dtype == dtype
    assert (values.real.astype(np.float32) > 0.004).all()
    assert (values.real.astype(np.float32) < 0.02).all()


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint8, jnp.int4, jnp.bool_])
def test_integers_are_small(dtype):
    values = make_input(array(64, dtype=dtype), NamedSharding(line_mesh(), P("x")))
    assert values.dtype == dtype
    assert set(np.asarray(values).astype(int)) <= set(range(100))
    assert not np.asarray(make_input(array(dtype=dtype), NamedSharding(line_mesh(), P()))).any()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int4, jnp.bool_, jax.random.key(0).dtype])
def test_inputs_of_the_host_are_the_same(dtype):
    host = make_host_input(jax.ShapeDtypeStruct((16,), dtype))
    devices = make_input(jax.ShapeDtypeStruct((16,), dtype), NamedSharding(line_mesh(), P()))
    assert (host.shape, host.dtype) == (devices.shape, devices.dtype)
    assert (np.asarray(devices == host)).all()


@pytest.mark.thin(3)
@pytest.mark.parametrize("shape", [(), (8,), (8, 3)])
@pytest.mark.parametrize(
    "implementation", ["threefry2x32", "rbg", "unsafe_rbg", "threefry4x32", "philox2x32", "philox4x32"]
)
def test_keys_are_keys(shape, implementation):
    dtype = jax.eval_shape(lambda: jax.random.key(0, impl=implementation)).dtype
    spec = P("x") if shape else P()
    keys = make_input(jax.ShapeDtypeStruct(shape, dtype), NamedSharding(line_mesh(), spec))
    assert keys.shape == shape
    assert keys.dtype == dtype
    assert keys.sharding.is_equivalent_to(NamedSharding(line_mesh(), spec), len(shape))


def test_inputs_are_sharded_and_shared():
    maker = InputMaker(line_mesh())
    one, other = maker.share(array(16, 8), P(None, "x")), maker.share(array(16, 8), P(None, "x"))
    assert one is other
    assert one.addressable_shards[0].data.shape == (16, 1)
    assert maker.make(array(16, 8), P(None, "x")) is not one
    assert maker.share(array(16, 8), P("x")) is not one
