"""Links by hand: Table 1, then each family. `1<-0/4`: output dim 1 with input dim 0, in 4 chunks."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from tests.ir.dependence.tracing import f32, flat_equations, i32, links, table


def test_table_1_elementwise():
    assert links(jnp.add, f32(4, 1, 6), f32(4, 1, 6)) == [["0<-0/4 2<-2/6", "0<-0/4 2<-2/6"]]
    assert links(lambda x: x + 1, f32(4, 6)) == [["0<-0/4 1<-1/6", ""]]


def test_table_1_split():
    assert links(lambda x: lax.reshape(x, (2, 3, 5)), f32(6, 5)) == [["0<-0/2 2<-1/5"]]


def test_table_1_merge():
    assert links(lambda x: lax.reshape(x, (6, 5)), f32(2, 3, 5)) == [["0<-0/2 1<-2/5"]]


def test_table_1_transpose():
    assert links(lambda x: lax.transpose(x, (2, 0, 1)), f32(2, 3, 5)) == [["0<-2/5 1<-0/2 2<-1/3"]]


def test_table_1_broadcast():
    assert links(lambda x: lax.broadcast_in_dim(x, (2, 3, 5), (0, 2)), f32(2, 1)) == [["0<-0/2"]]


def test_table_1_contraction():
    assert links(jnp.matmul, f32(4, 6), f32(6, 3)) == [["0<-0/4", "1<-1/3"]]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ((4, 6), (8, 3), "0<-0/4"),
        ((4, 3), (6, 2), "0<-0/2"),
        ((4, 3), (3, 4), ""),
        ((1, 6), (6,), "0<-1/6"),
        ((6,), (1, 2, 1, 3), "1<-0/2"),
        ((2, 3, 4, 5), (6, 20), "0<-0/2 1<-2/4"),
        ((2, 1, 3), (3, 2), ""),
        ((4, 3, 2), (4, 6), "0<-0/4 1<-1/3"),
        ((24,), (4, 6), "0<-0/4"),
        ((0, 4), (4, 0), ""),
        ((1,), (1, 1), ""),
        ((), (1,), ""),
    ],
)
def test_reshape(before, after, expected):
    assert links(lambda x: lax.reshape(x, after), f32(*before)) == [[expected]]


def test_selection():
    types = (f32(4, 6), f32(4, 6))
    both = ["0<-0/4 1<-1/6"] * 2
    assert links(lax.select_n, jax.ShapeDtypeStruct((), bool), *types) == [["", *both]]
    assert links(lax.select_n, jax.ShapeDtypeStruct((4, 6), bool), *types) == [["0<-0/4 1<-1/6", *both]]
    assert links(lax.clamp, f32(), f32(4), f32()) == [["", "0<-0/4", ""]]


def test_a_barrier_relates_each_output_with_its_own_input():
    assert links(lambda x, y: lax.optimization_barrier((x, y)), f32(4), f32(3, 2)) == [
        ["0<-0/4", "-"],
        ["-", "0<-0/3 1<-1/2"],
    ]


def test_rearrangements():
    assert links(lambda x: lax.squeeze(x, (0, 2)), f32(1, 4, 1, 6)) == [["0<-1/4 1<-3/6"]]
    assert links(lambda x: lax.rev(x, (0,)), f32(4, 6)) == [["1<-1/6"]]
    assert links(lambda x: lax.expand_dims(x, (0,)), f32(4, 6)) == [["1<-0/4 2<-1/6"]]
    assert links(lambda x: lax.tile(x, (2, 1)), f32(4, 6)) == [["1<-1/6"]]
    assert links(lambda x: lax.bitcast_convert_type(x, jnp.uint8), f32(4, 6)) == [["0<-0/4 1<-1/6"]]


def test_reductions():
    assert links(lambda x: jnp.sum(x, 1), f32(4, 6, 3)) == [["0<-0/4 1<-2/3"]]
    assert links(lambda x: lax.argmax(x, 0, jnp.int32), f32(4, 6)) == [["0<-1/6"]]
    general = links(lambda x: lax.reduce(x, 0.0, lambda a, b: a + b * b, (0,)), f32(4, 6))
    assert general == [["0<-1/6", ""]]


def test_products():
    numbers = (((3,), (1,)), ((0, 2), (0, 3)))
    assert links(lambda x, y: lax.dot_general(x, y, numbers), f32(2, 5, 3, 7), f32(2, 7, 4, 3)) == [
        ["0<-0/2 1<-2/3 2<-1/5", "0<-0/2 1<-3/3 3<-2/4"]
    ]
    ragged = links(lax.ragged_dot, f32(8, 6), f32(2, 6, 4), i32(2))
    assert ragged == [["", "1<-2/4", ""]]


def convolution(lhs, rhs, **params):
    return links(lambda x, w: lax.conv_general_dilated(x, w, **params), f32(*lhs), f32(*rhs))


def test_convolutions():
    plain = {"window_strides": (1, 1), "padding": "VALID"}
    assert convolution((4, 3, 8, 6), (10, 3, 1, 2), **plain) == [["0<-0/4 2<-2/8", "1<-0/10"]]
    strided = plain | {"window_strides": (2, 1)}
    assert convolution((4, 3, 8, 6), (10, 3, 1, 1), **strided) == [["0<-0/4 3<-3/6", "1<-0/10"]]
    features = plain | {"feature_group_count": 2}
    assert convolution((4, 6, 8, 6), (10, 3, 3, 3), **features) == [["0<-0/4 1<-1/2", "1<-0/2"]]
    batch = plain | {"batch_group_count": 2}
    assert convolution((4, 3, 8, 6), (10, 3, 3, 3), **batch) == [["1<-0/2", "1<-0/2"]]
    last = plain | {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
    assert convolution((4, 8, 6, 3), (1, 2, 3, 10), **last) == [["0<-0/4 1<-1/8", "3<-3/10"]]


def test_parts():
    assert links(lambda x: lax.slice(x, (0, 1), (4, 5)), f32(4, 6)) == [["0<-0/4"]]
    assert links(lambda x: x[::-1], f32(4, 6)) == [["1<-1/6"]]
    assert links(lambda x, i: lax.dynamic_slice(x, (i, i), (4, 2)), f32(4, 6), i32()) == [["0<-0/4", "", ""]]
    update = links(lambda x, y, i: lax.dynamic_update_slice(x, y, (i, i)), f32(4, 6), f32(4, 2), i32())
    assert update == [["0<-0/4", "0<-0/4", "", ""]]
    assert links(lambda x, y: lax.concatenate((x, y), 0), f32(4, 6), f32(2, 6)) == [["1<-1/6", "1<-1/6"]]
    assert links(lambda x: lax.pad(x, 0.0, ((0, 0, 0), (1, 0, 0))), f32(4, 6)) == [["0<-0/4", ""]]
    assert links(lambda x: lax.split(x, (2, 4), 1), f32(4, 6)) == [["0<-0/4"]] * 2
    assert links(lambda x, y: jnp.stack((x, y), 1), f32(4, 6), f32(4, 6)) == [["0<-0/4 2<-1/6"] * 2]


def only(name, fn, *types):
    """The table of the one equation of this name."""
    (found,) = (equation for equation in flat_equations(fn, *types) if equation.primitive.name == name)
    return table(found)


def test_an_embedding_is_linked_with_tokens_and_with_the_model_dim():
    found = only("gather", lambda rows, tokens: rows[tokens], f32(50, 8), i32(2, 6))
    assert found == [["2<-1/8", "0<-0/2 1<-1/6"]]


def test_the_gradient_of_an_embedding_contracts_the_tokens():
    found = only("scatter-add", lambda x, at, y: x.at[at].add(y), f32(50, 8), i32(2, 6), f32(2, 6, 8))
    assert found == [["1<-1/8", "", "1<-2/8"]]


def test_batch_dims_of_indices_are_linked_with_all():
    types = f32(4, 5, 3), i32(4, 2, 3)
    assert only("gather", lambda x, at: jnp.take_along_axis(x, at, 1), *types) == [
        ["0<-0/4 2<-2/3", "0<-0/4 1<-1/2 2<-2/3"]
    ]

    def put(x, at, y):
        return jax.vmap(lambda row, i, values: row.at[i].add(values))(x, at, y)

    assert only("scatter-add", put, f32(4, 5), i32(4, 2), f32(4, 2)) == [["0<-0/4", "0<-0/4", "0<-0/4"]]


def test_along_a_dim():
    assert links(lambda x: lax.cumsum(x, 0), f32(4, 6)) == [["1<-1/6"]]
    assert links(lambda x: lax.top_k(x, 2), f32(4, 6)) == [["0<-0/4"]] * 2
    by_one_key = links(lambda *xs: lax.sort(xs, dimension=0, num_keys=1), f32(4, 6), f32(4, 6), f32(4, 6))
    assert by_one_key == [["1<-1/6", "-", "-"], ["1<-1/6", "1<-1/6", "-"], ["1<-1/6", "-", "1<-1/6"]]
    assert only("fft", jnp.fft.fft, jax.ShapeDtypeStruct((4, 6), jnp.complex64)) == [["0<-0/4"]]


def test_windows():
    pooled = links(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID"), f32(4, 6))
    assert pooled == [["0<-0/4"]]
    general = links(lambda x: lax.reduce_window(x, 0.0, lambda a, b: a + b * b, (1, 2), (1, 2), "VALID"), f32(4, 6))
    assert general == [["0<-0/4", ""]]

    def pool(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID")

    backward = only("select_and_scatter_add", lambda x, y: jax.vjp(pool, x)[1](y), f32(4, 6), f32(4, 3))
    assert backward == [["0<-0/4", "0<-0/4"]]


def test_randomness():
    key = jax.eval_shape(lambda: jax.random.key(0))
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 4))
    assert only("random_bits", lambda key: jax.random.bits(key, (4, 6)), key) == [[""]]
    assert only("random_bits", jax.vmap(lambda key: jax.random.bits(key, (6,))), keys) == [["0<-0/4"]]
    assert only("random_fold_in", lambda key: jax.random.fold_in(key, 1), key) == [["", ""]]
    assert only("random_split", lambda key: jax.random.split(key, 4), key) == [[""]]
    assert only("random_unwrap", jax.random.key_data, keys) == [["0<-0/4"]]
    assert only("iota", lambda: lax.iota(jnp.int32, 4)) == [[]]
    words = jax.ShapeDtypeStruct((4,), jnp.uint32), jax.ShapeDtypeStruct((), jnp.uint32)
    cipher = links(jax.extend.random.threefry2x32_p.bind, words[1], words[1], words[0], words[0])
    assert cipher == [["", "", "0<-0/4", "0<-0/4"]] * 2


def test_factorisations_have_a_batch():
    assert only("cholesky", lax.linalg.cholesky, f32(4, 3, 3)) == [["0<-0/4"]]
    assert only("lu", lax.linalg.lu, f32(4, 3, 3)) == [["0<-0/4"]] * 3
