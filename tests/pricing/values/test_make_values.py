import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from jaxquard.pricing.values.make_values import ValueRange, make_array, make_host_array, make_traced
from tests.pricing.programs import array, line_mesh

MAKERS = {
    "in shards": lambda type_, values: make_array(type_, NamedSharding(line_mesh(), P("x")), values),
    "on the host": make_host_array,
    "in a program": lambda type_, values: jax.jit(lambda: make_traced(type_, values))(),
}


@pytest.fixture(params=list(MAKERS))
def make(request):
    return lambda type_, **values: np.asarray(MAKERS[request.param](type_, ValueRange(**values)))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16, jnp.complex64])
def test_floats_have_the_scale_of_a_layer(make, dtype):
    values = make(array(64, 512, dtype=dtype))
    assert values.dtype == dtype
    values = values.real.astype(np.float64) * math.sqrt(64)
    assert np.isfinite(values).all()
    assert values.mean() == pytest.approx(0, abs=0.05)
    assert values.std() == pytest.approx(1, abs=0.05)
    assert (np.abs(values) < 1).mean() == pytest.approx(0.683, abs=0.02)
    # Neighbours have nothing in common.
    assert abs(np.corrcoef(values[:, :-1].ravel(), values[:, 1:].ravel())[0, 1]) < 0.05


def test_narrow_floats_are_finite(make):
    values = make(array(16, 512, dtype=jnp.float8_e4m3fn)).astype(np.float32)
    assert np.isfinite(values).all()
    assert values.std() == pytest.approx(0.25, abs=0.03)


def test_what_has_one_dim_is_standard_normal(make):
    assert make(array(4096)).std() == pytest.approx(1, abs=0.05)


def test_what_a_root_is_taken_of_is_positive(make):
    for dtype in (jnp.float32, jnp.bfloat16):
        assert (make(array(64, 512, dtype=dtype), is_positive=True) > 0).all()


def test_indices_are_spread_over_the_whole_table(make):
    values = make(array(4096, dtype=jnp.int32), limit=50_000)
    assert values.min() < 500
    assert 49_500 < values.max() < 50_000
    assert len(np.unique(values)) > 3_500


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint8, jnp.int4, jnp.bool_])
def test_integers_of_which_nothing_is_known_are_small(make, dtype):
    values = make(array(64, dtype=dtype))
    assert values.dtype == dtype
    assert set(values.astype(int)) <= set(range(100))
    assert make(array(64, dtype=dtype), limit=10**6).astype(int).min() >= 0


def test_single_numbers_are_settings():
    sharding = NamedSharding(line_mesh(), P())
    assert make_array(array(dtype=jnp.int32), sharding) == 0
    assert 0 < make_array(array(), sharding) < 0.1


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.int4, jnp.bool_, jax.random.key(0).dtype])
def test_values_on_the_host_are_the_same(dtype):
    host = make_host_array(jax.ShapeDtypeStruct((16,), dtype))
    devices = make_array(jax.ShapeDtypeStruct((16,), dtype), NamedSharding(line_mesh(), P()))
    assert (host.shape, host.dtype) == (devices.shape, devices.dtype)
    assert (np.asarray(devices == host)).all()


def test_seeds_differ(make):
    del make
    sharding = NamedSharding(line_mesh(), P("x"))
    one, same, other = (np.asarray(make_array(array(64, 64), sharding, seed=seed)) for seed in (0, 0, 1))
    assert (one == same).all()
    assert (one != other).mean() > 0.99


@pytest.mark.thin(3)
@pytest.mark.parametrize("shape", [(), (8,), (8, 3)])
@pytest.mark.parametrize(
    "implementation", ["threefry2x32", "rbg", "unsafe_rbg", "threefry4x32", "philox2x32", "philox4x32"]
)
def test_keys_are_keys(shape, implementation):
    dtype = jax.eval_shape(lambda: jax.random.key(0, impl=implementation)).dtype
    spec = P("x") if shape else P()
    keys = make_array(jax.ShapeDtypeStruct(shape, dtype), NamedSharding(line_mesh(), spec))
    assert keys.shape == shape
    assert keys.dtype == dtype
    assert keys.sharding.is_equivalent_to(NamedSharding(line_mesh(), spec), len(shape))


def test_arrays_are_sharded():
    assert make_array(array(16, 8), NamedSharding(line_mesh(), P(None, "x"))).addressable_shards[0].data.shape == (
        16,
        1,
    )
