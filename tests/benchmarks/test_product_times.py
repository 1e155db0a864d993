"""The benchmark of products measures what it says, on shapes that stay as they were drawn."""

import jax
import jax.numpy as jnp

from benchmarks.product_times import Shape, held_out_shapes, measure_s, random_matrix


def test_the_shapes_are_those_that_were_drawn():
    shapes = held_out_shapes()
    assert len(shapes) == 40
    assert shapes[0] == Shape(m=6144, k=8192, n=14336, dtype="bfloat16")
    assert sum(shape.dtype == "float8_e4m3fn" for shape in shapes) == 16
    assert {min(min(shape.m, shape.k, shape.n) for shape in shapes)} == {128}


def test_a_larger_product_takes_longer():
    small, large = (Shape(m=size, k=size, n=size, dtype="bfloat16") for size in (8, 512))
    small_s, large_s = (measure_s(shape, sample_s=1e-3, most_copies=3) for shape in (small, large))
    assert 0 < small_s < large_s


def test_values_are_those_of_a_training():
    values = random_matrix(jax.random.key(0), (512, 512), "float8_e4m3fn").astype(jnp.float32)
    assert abs(float(values.std()) - 1) < 0.1
