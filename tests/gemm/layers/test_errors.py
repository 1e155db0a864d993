"""Every refusal says what was expected, what was found and what fits."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from jaxquard.errors import GemmError
from jaxquard.gemm import (
    AlgorithmOptions,
    Dataflow,
    GemmPlan,
    LayerPlan,
    Product,
    Stationary,
    dense,
    layer_shardings,
    matmul,
    matmul_local,
    multiply,
    multiply_local,
)
from jaxquard.gemm.algorithms.registry import ALGORITHMS, find_algorithm
from tests.gemm.meshes import make_mesh

OS = Product(dataflow=Dataflow.OS, rows=("x",), columns=("z",))


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
        ((10, 8, 8), {}, "M, the rows of lhs, must be a multiple of 4 (a 4x2 mesh shards it over 4), but is 10."),
        ((10, 8, 8), {}, "the nearest that fit: 8 or 12."),
        ((8, 8, 3), {}, "N, the columns of rhs, must be a multiple of 2 (a 4x2 mesh shards it over 2), but is 3."),
        ((8, 6, 8), {}, "K, the dim summed over, must be a multiple of 4 (a 4x2 mesh shards it over 4 and over 2)"),
        ((8, 2, 8), {}, "but is 2. Pad it: the nearest that fit: 4."),
        (
            (8, 72, 8),
            {"slices": 2},
            "must be a multiple of 64 (a 4x2 mesh splits it into 4, each into 2 slices of blocks of 8), but is 72. "
            "Pad it: the nearest that fit: 64 or 128.",
        ),
        ((8, 128, 8), {"slices": 3}, "nearest that fit: 96 or 192. Or ask for 2 or 4 slices."),
        ((8, 96, 8), {"slices": 8}, "nearest that fit: 256. Or ask for 3 slices."),
        ((8, 36, 8), {"slices": 4, "block": 1}, "nearest that fit: 32 or 48. Or ask for 3 slices."),
        ((8, 24, 8), {"algorithm": "summa", "slices": 16}, "nearest that fit: 16 or 32. Or ask for 12 or 24 slices."),
        ((8, 64, 72), {"slices": 2, "dataflow": "ls"}, "N, the columns of rhs, must be a multiple of 64"),
        ((72, 64, 64), {"slices": 2, "dataflow": "rs"}, "M, the rows of lhs, must be a multiple of 64"),
        ((8, 10, 8), {"algorithm": "fsdp"}, "must be a multiple of 8 (a 8x1 mesh shards it over 8 and over 1)"),
        ((8, 8, 8), {"algorithm": "summa", "slices": 3}, "(a 4x2 mesh and 3 iterations split it into 12)"),
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
        ({"slices": 0}, "slices must be a whole number of 1 or more, but is 0."),
        ({"slices": 2.0}, "slices must be a whole number of 1 or more, but is 2.0."),
        ({"slices": True}, "slices must be a whole number of 1 or more, but is True."),
        ({"slices": (1, 2, 1)}, "slices must be a whole number of 1 or more, but is (1, 2, 1)."),
        ({"block": 0, "slices": 2}, "block must be a whole number of 1 or more, but is 0."),
        ({"block": "8"}, "block must be a whole number of 1 or more, but is '8'."),
        ({"algorithm": "summa", "num_packets": 0}, "num_packets must be a whole number of 1 or more, but is 0."),
        ({"algorithm": ["summa"]}, "no GeMM algorithm is called ['summa']."),
        ({"dataflow": ["os"]}, "dataflow must be one of 'os', 'ls', 'rs', but is ['os']."),
        ({"ring": "rows"}, "meshslice takes no ring, which is an option of wang. Leave it out."),
        ({"num_packets": 2}, "meshslice takes no num_packets, which is an option of summa. Leave it out."),
        (
            {"algorithm": "wang", "split_for_overlap": True},
            "wang takes no split_for_overlap, which is an option of meshslice.",
        ),
        ({"algorithm": "summa", "block": 8}, "summa takes no block, which is an option of meshslice."),
        (
            {"algorithm": "wang", "slices": 3, "ring": "rows"},
            "must divide the 4 chips of its ring, but slices is 3. Use one of: 1, 2, 4.",
        ),
        ({"algorithm": "wang", "ring": "diagonal"}, "ring must be 'rows', 'columns' or None, but is 'diagonal'."),
        ({"algorithm": "fsdp", "ring": "rows"}, "fsdp takes no ring, which is an option of wang. Leave it out."),
        (
            {"axis_names": ("x", "z")},
            "axis_names must be two axes of the mesh, its rows and columns, but are ('x', 'z'). The mesh has x, y.",
        ),
        ({"ring": ["rows"]}, "ring must be 'rows', 'columns' or None, but is ['rows']."),
        ({"is_transposed": "no"}, "is_transposed must be True or False, but is 'no'."),
        ({"split_for_overlap": 1}, "split_for_overlap must be True or False, but is 1."),
        ({"axis_names": "xy"}, "its rows and columns, but are 'xy'"),
        ({"axis_names": ("x", "x")}, "its rows and columns, but are ('x', 'x')"),
        ({"axis_names": 2}, "its rows and columns, but are 2"),
    ],
)
def test_words_that_do_not_fit(how, message):
    refused(message, ones(8, 8), ones(8, 8), **how)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"slices": (1, 2)}, "slices must be one number, or three: for the product forward, backward of x and"),
        ({"slices": (1, 2)}, "backward of w, but is (1, 2)."),
        ({"slices": (1, 0, 1)}, "each of slices must be a whole number of 1 or more, but is 0 in (1, 0, 1)."),
        ({"slices": 2.0}, "slices must be a whole number of 1 or more, but is 2.0."),
        ({"slices": 0}, "slices must be a whole number of 1 or more, but is 0."),
        ({"block": 0}, "block must be a whole number of 1 or more, but is 0."),
        ({"algorithm": ""}, "no GeMM algorithm is called ''."),
        ({"is_transposed": "no"}, "is_transposed must be True or False, but is 'no'."),
        ({"stationary": ""}, "stationary must be one of 'y', 'x', 'w', but is ''."),
        ({"ring": "rows"}, "meshslice takes no ring"),
        ({"algorithm": "wang", "split_for_overlap": True}, "wang takes no split_for_overlap"),
        ({"algorithm": "wang", "num_packets": 4}, "wang takes no num_packets"),
        ({"algorithm": "wang", "block": 4}, "wang takes no block"),
        ({"layer": "up"}, "layer='up' names a layer of a plan, but no plan is given. Leave it out, or give its plan."),
        ({"plan": LayerPlan(name="up", stationary=Stationary.Y), "layer": "out"}, "but the plan is that of layer 'up'"),
        ({"plan": "plan.json"}, "plan must be what `autotune` returns, a GemmPlan or a LayerPlan; found 'plan.json'."),
    ],
)
def test_words_of_a_layer_that_do_not_fit(how, message):
    """By `dense` as well, when the layer is made, whether there is a mesh by then or not."""
    refused_layer(message, ones(8, 8), ones(8, 8), **how)
    for mesh in (None, make_mesh((4, 2))):
        with pytest.raises(GemmError) as error:
            dense(8, mesh=mesh, **how)
        assert message in str(error.value)


def test_a_list_of_slices_will_do():
    x, w = ones(8, 64), ones(64, 64)
    found = matmul(x, w, mesh=make_mesh((2, 2)), slices=[2, 1, 2], block=1)
    assert (found == 64).all()
    assert hash(dense(8, slices=[2, 1, 2])) == hash(dense(8, slices=(2, 1, 2)))


def test_sizes_of_a_dense_layer():
    with pytest.raises(GemmError, match="features must be a whole number of 1 or more, but is 0"):
        dense(0)
    layer = dense(8, mesh=make_mesh((4, 2)), use_bias=True)
    with pytest.raises(GemmError, match=r"in_features must be a whole number of 1 or more, but is 2\.5"):
        layer.init(jax.random.key(0), 2.5)
    with pytest.raises(GemmError, match=r"in_features must be a multiple of 4 .*nearest that fit: 8 or 12"):
        layer.init(jax.random.key(0), 10)
    with pytest.raises(GemmError, match="dtype of parameters must be a floating one, but is 'int32'"):
        layer.init(jax.random.key(0), 8, dtype="int32")
    with pytest.raises(GemmError, match=r"the layer has 8 features, but params\['w'\] is \(8, 16\)"):
        layer.apply({"w": ones(8, 16), "b": ones(16)}, ones(8, 8))
    with pytest.raises(GemmError, match="params must be the dictionary that `init` gives, but is list"):
        layer.apply([ones(8, 8)], ones(8, 8))
    with pytest.raises(GemmError, match="params must have what `init` gives, but lacks 'b'; it has w"):
        layer.apply({"w": ones(8, 8)}, ones(8, 8))


def test_no_mesh():
    message = r"needs a mesh, but none is given and none is set. Give mesh=..., or run it under `with jax.set_mesh"
    x, w = ones(8, 8), ones(8, 8)
    for attempt in (
        lambda: matmul(x, w),
        lambda: multiply(x, w),
        lambda: jax.jit(matmul)(x, w),
        lambda: layer_shardings(),
        lambda: dense(8).init(jax.random.key(0), 8),
        lambda: dense(8).apply({"w": w}, x),
    ):
        with pytest.raises(GemmError, match=message):
            attempt()
    with pytest.raises(GemmError, match=r"mesh must be a jax.sharding.Mesh, but is \(4, 2\). Make one"):
        matmul(x, w, mesh=(4, 2))


def test_whole_products_inside_a_shard_map():
    mesh = make_mesh((4, 2))
    mapped = jax.shard_map(
        lambda x, w: matmul(x, w, mesh=mesh), mesh=mesh, in_specs=(P("x", "y"),) * 2, out_specs=P("x", "y")
    )
    with pytest.raises(GemmError, match=r"inside of a `shard_map` over x, y each chip has shards.*`matmul_local`"):
        mapped(ones(8, 8), ones(8, 8))


def test_matrices_that_do_not_fit():
    refused("must be equal, but the shapes are (8, 8) and (16, 8)", ones(8, 8), ones(16, 8))
    refused("expected lhs with 2 dims or more and rhs with 2, but found shapes (8,) and (8, 8)", ones(8), ones(8, 8))
    mixed = ones(8, 8, dtype=jnp.bfloat16)
    refused("one floating dtype, but have bfloat16 and float32. Convert one: rhs.astype", mixed, ones(8, 8))
    refused("one floating dtype, but have int32 and int32", ones(8, 8, dtype=jnp.int32), ones(8, 8, dtype=jnp.int32))
    refused_layer("w.astype(x.dtype)", mixed, ones(8, 8))
    refused("lhs must have 2 dims, but its shape is (2, 8, 8). For leading dims, use", ones(2, 8, 8), ones(8, 8))
    refused_layer("w must be an array, but is list. Convert it: jnp.asarray(w).", ones(8, 8), [[1.0] * 8] * 8)


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
    with pytest.raises(GemmError, match=r"the plan has no layer 'ff1'; it has qkv, out. Name one of them."):
        plan.layer("ff1")
    refused_layer("stationary must be one of 'y', 'x', 'w', but is 'z'", x, w, stationary="z")


def test_shards_that_do_not_fit():
    """Inside a user's `shard_map`, the sizes are those of the whole matrices."""
    product = Product(dataflow=Dataflow.OS, rows=("x",), columns=("y",))
    options = AlgorithmOptions(slices=4, block=1)

    def body(lhs, rhs):
        return multiply_local(lhs, rhs, algorithm="meshslice", product=product, options=options)

    specs = {"in_specs": (P("x", "y"), P("x", "y")), "out_specs": P("x", "y")}
    with pytest.raises(GemmError, match=r"K, the dim summed over, must be a multiple of 16 .* but is 8"):
        jax.shard_map(body, mesh=make_mesh((4, 2)), **specs)(ones(8, 8), ones(8, 8))


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda x, w: matmul_local(x, w, axis_names=("x", "z")), "over x and z, but the manual axes here are: x, y."),
        (lambda x, w: matmul_local(x, w, axis_names=("x",)), "must be two axes of the shard_map, its rows and columns"),
        (lambda x, w: matmul_local(x[0], w, axis_names=("x", "y")), "expected x with 2 dims or more and w with 2"),
        (lambda x, w: matmul_local(x[:, :2], w, axis_names=("x", "y")), "but the shapes are (8, 4) and (8, 8)."),
        (lambda x, w: matmul_local(x.astype("bfloat16"), w, axis_names=("x", "y")), "one floating dtype, but have bf"),
        (lambda x, w: multiply_local(x, w, algorithm="wang", product=OS), "over x and z, but the manual axes here are"),
        (lambda x, w: multiply_local(x, w, algorithm="wang", product=None), "must be a gemm.Product, but is None."),
        (
            lambda x, w: multiply_local(x[:, :2], w, algorithm="wang", product=replace(OS, columns=("y",))),
            "but the shapes are (8, 4) and (8, 8).",
        ),
    ],
)
def test_what_does_not_fit_inside_a_shard_map(run, message):
    mapped = jax.shard_map(
        run, mesh=make_mesh((4, 2)), in_specs=(P("x", "y"),) * 2, out_specs=P("x", "y"), check_vma=False
    )
    with pytest.raises(GemmError) as error:
        mapped(ones(8, 8), ones(8, 8))
    assert message in str(error.value)


def test_shards_outside_of_a_shard_map():
    with pytest.raises(GemmError, match=r"inside of a `shard_map` over x and y, but the manual axes here are: none"):
        matmul_local(ones(8, 8), ones(8, 8), axis_names=("x", "y"))


def test_dims_of_shardings():
    with pytest.raises(GemmError, match=r"num_x_dims must be 2 or more: .* but is 1"):
        layer_shardings(mesh=make_mesh((4, 2)), num_x_dims=1)


def test_dense_answers_wrong_plans_when_it_is_made():
    with pytest.raises(GemmError, match="no GeMM algorithm is called 'sum'"):
        dense(8, mesh=make_mesh((4, 2)), algorithm="sum")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"slicse": 2}, "a layer takes no 'slicse'; besides mesh and plan it takes layer, algorithm, stationary,"),
        ({"use_bias": "yes"}, "use_bias must be True or False, but is 'yes'."),
    ],
)
def test_dense_answers_wrong_words_when_it_is_made(how, message):
    with pytest.raises(GemmError) as error:
        dense(8, mesh=make_mesh((4, 2)), **how)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("key", "how", "message"),
    [
        (3, {}, "key must be one key, such as jax.random.key(0), but is 3."),
        (None, {}, "key must be one key, such as jax.random.key(0), but is None."),
        (ones(3), {}, "but is float32[3]."),
        (jax.random.split(jax.random.key(0), 3), {}, "but is key<fry>[3]."),
        (jax.random.key(0), {"dtype": "floot32"}, "dtype of parameters must be a floating one, but is 'floot32'."),
        (jax.random.key(0), {"dtype": "int32"}, "dtype of parameters must be a floating one, but is 'int32'."),
        (jax.random.key(0), {"dtype": None}, "dtype of parameters must be a floating one, but is None."),
    ],
)
def test_keys_and_dtypes_that_are_none(key, how, message):
    with pytest.raises(GemmError) as error:
        dense(8, mesh=make_mesh((4, 2))).init(key, 8, **how)
    assert message in str(error.value)


def test_old_keys_and_names_of_dtypes_will_do():
    layer = dense(8, mesh=make_mesh((4, 2)))
    params = layer.init(jax.random.PRNGKey(0), 8, dtype="bfloat16")
    assert params["w"].dtype == "bfloat16"
    assert jax.eval_shape(lambda key: layer.init(key, 8), jax.random.key(0))["w"].shape == (8, 8)


@pytest.mark.parametrize("w", [None, [[1.0]], 3.0])
def test_parameters_that_are_no_arrays(w):
    layer = dense(8, mesh=make_mesh((4, 2)))
    with pytest.raises(GemmError, match=rf"params\['w'\] must be an array, but is {type(w).__name__}"):
        layer.apply({"w": w}, ones(8, 8))
