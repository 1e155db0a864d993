"""Every refusal says what was expected, what was found and what fits."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from jaxquard.errors import GemmError
from jaxquard.gemm import Dataflow, GemmPlan, LayerPlan, Product, Stationary, dense, matmul, multiply, multiply_local
from jaxquard.gemm.registry import ALGORITHMS, find_algorithm
from tests.gemm.meshes import make_mesh


def ones(*shape, dtype=jnp.float32):
    return jnp.ones(shape, dtype)


def refused(message, lhs, rhs, *, mesh_shape=(4, 2), **how):
    with pytest.raises(GemmError) as error:
        multiply(lhs, rhs, mesh=make_mesh(mesh_shape), **how)
    assert message in str(error.value)


def refused_layer(message, x, w, *, mesh_shape=(4, 2), **how):
    with pytest.raises(GemmError) as error:
        matmul(x, w, mesh=make_mesh(mesh_shape), **how)
    assert message in str(error.value)


def test_an_unknown_algorithm_is_answered_with_the_list():
    """A pitfall of the authors' code: there, a wrong name silently runs MeshSlice."""
    message = "no GeMM algorithm is called 'meshlice'. Use one of: " + ", ".join(ALGORITHMS) + "."
    refused(message, ones(8, 8), ones(8, 8), algorithm="meshlice")
    refused_layer(message, ones(8, 8), ones(8, 8), algorithm="meshlice")
    assert find_algorithm("summa").name == "summa"


@pytest.mark.parametrize(
    ("shapes", "how", "message"),
    [
        ((10, 8, 8), {}, "M, the rows of lhs, must be a multiple of 4 (a 4x2 mesh cuts it into 4), but is 10."),
        ((10, 8, 8), {}, "the nearest that fit: 8 or 12."),
        ((8, 8, 3), {}, "N, the columns of rhs, must be a multiple of 2 (a 4x2 mesh cuts it into 2), but is 3."),
        ((8, 6, 8), {}, "K, the dim summed over, must be a multiple of 4 (a 4x2 mesh cuts it into 4 and into 2)"),
        ((8, 2, 8), {}, "but is 2. Pad it: the nearest that fit: 4."),
        (
            (8, 72, 8),
            {"slices": 2},
            "must be a multiple of 64 (a 4x2 mesh cuts it into 4, each into 2 slices of blocks of 8), but is 72. "
            "Pad it: the nearest that fit: 64 or 128.",
        ),
        ((8, 64, 72), {"slices": 2, "dataflow": "ls"}, "N, the columns of rhs, must be a multiple of 64"),
        ((72, 64, 64), {"slices": 2, "dataflow": "rs"}, "M, the rows of lhs, must be a multiple of 64"),
        ((8, 10, 8), {"algorithm": "fsdp"}, "must be a multiple of 8 (a 8x1 mesh cuts it into 8 and into 1)"),
        ((8, 8, 8), {"algorithm": "summa", "slices": 3}, "(a 4x2 mesh and 3 iterations cut it into 12)"),
        ((8, 8, 8), {"algorithm": "summa", "num_packets": 3}, "which 3 packets do not divide"),
    ],
)
def test_sizes_that_do_not_divide(shapes, how, message):
    m, k, n = shapes
    refused(message, ones(m, k), ones(k, n), **how)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"dataflow": "as"}, "dataflow must be one of 'os', 'ls', 'rs', but is 'as'."),
        (
            {"algorithm": "cannon"},
            "cannon needs a square mesh, but this one has 4 rows and 2 columns of chips. Use 2x2",
        ),
        ({"algorithm": "cannon", "slices": 2, "mesh_shape": (2, 2)}, "cannon does not slice, but slices is 2."),
        ({"algorithm": "collective", "slices": 2}, "collective does not slice, but slices is 2. Leave it out"),
        ({"slices": 0}, "slices must be 1 or more, but is 0."),
        ({"block": 0, "slices": 2}, "block must be 1 or more, but is 0."),
        (
            {"algorithm": "wang", "slices": 3, "ring": "rows"},
            "must divide the 4 chips of its ring, but slices is 3. Use one of: 1, 2, 4.",
        ),
        ({"algorithm": "wang", "ring": "diagonal"}, "ring must be 'rows', 'columns' or None, but is 'diagonal'."),
        ({"algorithm": "fsdp", "ring": "rows"}, "fsdp has one ring, of all chips; leave `ring` out."),
        (
            {"axis_names": ("x", "z")},
            "axis_names must be two axes of the mesh, its rows and columns, but are ('x', 'z')",
        ),
    ],
)
def test_words_that_do_not_fit(how, message):
    refused(message, ones(8, 8), ones(8, 8), **how)


def test_matrices_that_do_not_fit():
    refused("must be equal, but the shapes are (8, 8) and (16, 8)", ones(8, 8), ones(16, 8))
    refused("expected lhs with 2 dims or more and rhs with 2, but found shapes (8,) and (8, 8)", ones(8), ones(8, 8))
    mixed = ones(8, 8, dtype=jnp.bfloat16)
    refused("one floating dtype, but have bfloat16 and float32. Convert one: rhs.astype", mixed, ones(8, 8))
    refused("one floating dtype, but have int32 and int32", ones(8, 8, dtype=jnp.int32), ones(8, 8, dtype=jnp.int32))
    refused_layer("w.astype(x.dtype)", mixed, ones(8, 8))


def test_a_mesh_of_three_axes_wants_two_named():
    mesh = make_mesh((2, 2, 2), ("data", "x", "y"))
    with pytest.raises(GemmError, match=r'the mesh has 3: data, x, y. Name them: axis_names=\("x", "y"\)'):
        multiply(ones(8, 8), ones(8, 8), mesh=mesh)


@pytest.mark.parametrize(
    ("stationary", "x_shape", "w_shape", "message"),
    [
        ("y", (8, 4, 24), (24, 64), "the last dim of x must be a multiple of 64"),
        ("x", (8, 4, 64), (64, 24), "the last dim of w must be a multiple of 64"),
        ("w", (4, 6, 64), (64, 64), "the rows of x must be a multiple of 64"),
        (
            "y",
            (2, 32, 64),
            (64, 64),
            "the first dim of x must be a multiple of 4 (4 rows or columns of chips share it)",
        ),
    ],
)
def test_layers_name_the_users_dims(stationary, x_shape, w_shape, message):
    refused_layer(message, ones(*x_shape), ones(*w_shape), stationary=stationary, slices=2)


def test_backward_slices_are_checked_forward():
    refused_layer("4 slices of blocks of 8", ones(8, 64), ones(64, 64), slices=(1, 1, 4))


def test_plans_that_do_not_fit():
    layers = tuple(LayerPlan(name=name, stationary=Stationary.Y) for name in ("qkv", "out"))
    plan = GemmPlan(algorithm="meshslice", mesh_shape=(4, 2), layers=layers)
    x, w = ones(8, 8), ones(8, 8)
    refused_layer("the plan is for a 4x2 mesh, but the mesh is 2x4.", x, w, mesh_shape=(2, 4), plan=plan, layer="qkv")
    refused_layer("the plan has the layers qkv, out, but found layer='ff1'. Name one", x, w, plan=plan, layer="ff1")
    refused_layer("but found layer=None", x, w, plan=plan)
    refused_layer("the plan says slices already. Leave it out", x, w, plan=plan, layer="out", slices=2)
    refused_layer("the plan's algorithm is meshslice, but wang", x, w, plan=plan, layer="out", algorithm="wang")
    refused_layer("stationary must be one of 'y', 'x', 'w', but is 'z'", x, w, stationary="z")


def test_shards_that_do_not_fit():
    """Inside a `shard_map` of one's own, the sizes are those of the whole matrices."""
    product = Product(dataflow=Dataflow.OS, rows=("x",), columns=("y",), slices=4, block=1)

    def body(lhs, rhs):
        return multiply_local(lhs, rhs, algorithm="meshslice", product=product)

    specs = {"in_specs": (P("x", "y"), P("x", "y")), "out_specs": P("x", "y")}
    with pytest.raises(GemmError, match=r"K, the dim summed over, must be a multiple of 16 .* but is 8"):
        jax.shard_map(body, mesh=make_mesh((4, 2)), **specs)(ones(8, 8), ones(8, 8))


def test_dense_answers_wrong_plans_when_it_is_made():
    with pytest.raises(GemmError, match="no GeMM algorithm is called 'sum'"):
        dense(8, mesh=make_mesh((4, 2)), algorithm="sum")
