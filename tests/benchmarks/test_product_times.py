"""The benchmark of products measures what it says, on shapes that stay as they were drawn."""

import jax
import jax.numpy as jnp

from benchmarks import product_times
from benchmarks.product_times import Shape, held_out_shapes, measure_all


def test_the_shapes_are_those_that_were_drawn():
    shapes = held_out_shapes()
    assert len(shapes) == 40
    assert shapes[0] == Shape(m=6144, k=8192, n=14336, dtype="bfloat16")
    assert sum(shape.dtype == "float8_e4m3fn" for shape in shapes) == 16
    assert {min(min(shape.m, shape.k, shape.n) for shape in shapes)} == {128}


def test_small_products_are_measured_in_copies(monkeypatch):
    for name in ("_SETTLE_S", "_SAMPLE_S"):
        monkeypatch.setattr(product_times, name, 1e-3)
    monkeypatch.setattr(product_times, "_MOST_COPIES", 3)
    found = dict(measure_all((Shape(m=8, k=16, n=8, dtype="bfloat16"),)))
    assert [0 < time_s < 1 for time_s in found.values()] == [True]


def test_values_are_those_of_a_training():
    values = product_times._normal(jax.random.key(0), (512, 512), "float8_e4m3fn").astype(jnp.float32)
    assert abs(float(values.std()) - 1) < 0.1
