"""The kernel multiplies as NumPy does, without race conditions, by Pallas's interpreter of TPUs.

The interpreter runs a chip's program in a thread. On few cores, arrays of 100 KB and more stop all of 8 chips: the CPU
client copies them in threads that wait. So matrices are small where chips are many.
"""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec
from numpy.testing import assert_array_equal

from jaxquard.errors import GemmError
from jaxquard.gemm import AlgorithmOptions, Dataflow, Kernel, Layout, Product, multiply, multiply_local
from tests.gemm.meshes import exact, make_mesh, whole_numbers
from tests.gemm.variants import mesh_id


@pytest.fixture
def interpreter(capfd):
    """Interprets kernels; fails if it finds a race condition."""
    params = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")
    with pltpu.force_tpu_interpret_mode(params):
        yield
    assert "RACE DETECTED" not in capfd.readouterr().out


def check(mesh_shape, sizes, *, dtype=jnp.float32, num_runs=2, **how):
    """Checks several runs: which DMA overtakes which differs from run to run."""
    m, k, n = sizes
    lhs, rhs = whole_numbers(m, k, seed=0, dtype=dtype), whole_numbers(k, n, seed=1, dtype=dtype)
    run = jax.jit(lambda lhs, rhs: multiply(lhs, rhs, mesh=make_mesh(mesh_shape), kernel="pallas", **how))
    for found in (run(lhs, rhs) for _ in range(num_runs)):
        assert found.dtype == dtype
        assert_array_equal(exact(found), exact(lhs) @ exact(rhs))


@pytest.mark.slow
@pytest.mark.usefixtures("interpreter")
def test_on_2_by_2_chips():
    """Three slices: one buffer is written again."""
    check((2, 2), (4, 24, 4), slices=3, block=2, num_runs=3)


@pytest.mark.slow
@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize(
    ("mesh_shape", "sizes", "slices"),
    [
        ((2, 4), (16, 48, 16), 3),
        ((4, 2), (16, 64, 16), 4),
        ((8, 1), (16, 32, 8), 2),
        ((1, 8), (8, 64, 24), 4),
        ((1, 1), (8, 16, 8), 2),
        ((2, 4), (2, 24, 4), 3),
        ((4, 2), (16, 16, 16), 1),
    ],
    ids=mesh_id,
)
def test_on_meshes_of_8_chips(mesh_shape, sizes, slices):
    """Also one row a chip, which goes round one way only, and one slice, where nothing overlaps."""
    check(mesh_shape, sizes, slices=slices, block=1)


@pytest.mark.slow
@pytest.mark.usefixtures("interpreter")
def test_in_bfloat16_and_transposed():
    check((2, 4), (16, 48, 16), slices=3, block=2, dtype=jnp.bfloat16, is_transposed=True)


@pytest.mark.slow
@pytest.mark.usefixtures("interpreter")
def test_in_tiles_of_a_tpus_memory():
    check((2, 2), (64, 1024, 512), slices=2, block=128)


@pytest.mark.slow
@pytest.mark.usefixtures("interpreter")
def test_transposed_layouts_and_a_ring_of_two_axes():
    mesh = make_mesh((2, 2, 2), ("x", "y", "z"))
    product = Product(
        dataflow=Dataflow.OS, rows=("z",), columns=("y", "x"), layout=Layout(lhs="KM", rhs="NK", out="NM")
    )
    options = AlgorithmOptions(slices=3, block=2, kernel=Kernel.PALLAS)
    lhs_KM, rhs_NK = whole_numbers(48, 8, seed=0), whole_numbers(8, 48, seed=1)
    columns, rows = ("y", "x"), "z"
    found = jax.jit(
        jax.shard_map(
            lambda lhs, rhs: multiply_local(lhs, rhs, algorithm="meshslice", product=product, options=options),
            mesh=mesh,
            in_specs=(PartitionSpec(columns, rows), PartitionSpec(columns, rows)),
            out_specs=PartitionSpec(columns, rows),
            check_vma=False,
        )
    )(lhs_KM, rhs_NK)
    assert_array_equal(exact(found), exact(rhs_NK) @ exact(lhs_KM))


@pytest.mark.slow
@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("in_axes", [(0, None), (None, 0), (0, 0)])
def test_under_vmap(in_axes):
    shapes = ((4, 24), (24, 4))
    lhs, rhs = (
        whole_numbers(*(shape if axis is None else (3, *shape)), seed=1)
        for shape, axis in zip(shapes, in_axes, strict=True)
    )
    run = jax.vmap(
        lambda lhs, rhs: multiply(lhs, rhs, mesh=make_mesh((2, 2)), slices=3, block=2, kernel="pallas"), in_axes
    )
    assert_array_equal(exact(jax.jit(run)(lhs, rhs)), exact(lhs) @ exact(rhs))


def refuse(message, *, sizes=(64, 64, 64), dtype=jnp.float32, mesh=None, **how):
    m, k, n = sizes
    lhs, rhs = jax.ShapeDtypeStruct((m, k), dtype), jax.ShapeDtypeStruct((k, n), dtype)
    mesh = make_mesh((2, 2)) if mesh is None else mesh
    with pytest.raises(GemmError, match=message):
        jax.eval_shape(lambda lhs, rhs: multiply(lhs, rhs, mesh=mesh, **{"kernel": "pallas", **how}), lhs, rhs)


def test_what_the_kernel_cannot_do():
    refuse("kernel must be one of 'xla', 'pallas', but is 'triton'", kernel="triton")
    refuse("collective takes no kernel, which is an option of meshslice", algorithm="collective")
    refuse("in the dataflow 'os', but this product is in 'ls'. Use dataflow='os', or kernel='xla'", dataflow="ls")
    refuse("in the dataflow 'os', but this product is in 'rs'", dataflow="rs")
    refuse("split_for_overlap splits products for XLA.*Leave one of them out", slices=2, split_for_overlap=True)
    refuse("multiplies bfloat16 and float32, but the matrices are float16. Convert them", dtype=jnp.float16)
    refuse("in the default precision to a result in bfloat16 or float32", precision="highest")
    refuse("in the default precision to a result in bfloat16 or float32", preferred_element_type=jnp.float16)
    refuse("is for TPUs, but the devices are 'cpu'. Use kernel='xla'")


@pytest.mark.usefixtures("interpreter")
def test_axes_that_the_compiler_partitions():
    mesh = make_mesh((2, 2, 2), ("data", "x", "y"))
    refuse(
        "all axes of the mesh are manual, but data is left to the compiler",
        mesh=mesh,
        axis_names=("x", "y"),
        batch_axes=(),
    )


@pytest.mark.slow
@pytest.mark.usefixtures("interpreter")
def test_beside_an_axis_of_data_parallelism():
    mesh = make_mesh((2, 2, 2), ("data", "x", "y"))
    lhs, rhs = whole_numbers(8, 24, seed=0), whole_numbers(24, 4, seed=1)
    how = {"mesh": mesh, "axis_names": ("x", "y"), "batch_axes": ("data",), "slices": 3, "block": 2, "kernel": "pallas"}
    found = jax.jit(lambda lhs, rhs: multiply(lhs, rhs, preferred_element_type=jnp.float32, **how))(
        lhs.astype(jnp.bfloat16), rhs.astype(jnp.bfloat16)
    )
    assert found.dtype == jnp.float32
    assert_array_equal(exact(found), exact(lhs) @ exact(rhs))


def tpu_mesh():
    device = jax.sharding.AbstractDevice(device_kind="TPU v5e", num_cores=1, platform="tpu")
    return jax.sharding.AbstractMesh(
        (4, 2), ("x", "y"), axis_types=(jax.sharding.AxisType.Auto,) * 2, abstract_device=device
    )


def test_slices_that_are_no_tiles_of_a_tpus_memory():
    refuse(
        "multiples of 8 rows by 128 columns of float32, but a chip's slice of lhs is 64 by 96. Use a number of "
        r"slices that fits \(1, 3\), or kernel='xla'",
        sizes=(256, 768, 256),
        slices=4,
        mesh=tpu_mesh(),
    )
    refuse(
        "multiples of 16 rows by 128 columns of bfloat16, but a chip's slice of rhs is 128 by 64. Pad the matrices",
        sizes=(256, 1024, 128),
        slices=2,
        dtype=jnp.bfloat16,
        mesh=tpu_mesh(),
    )


@pytest.mark.usefixtures("interpreter")
def test_gradients_are_those_of_matmul():
    lhs, rhs = whole_numbers(8, 16, seed=0), whole_numbers(16, 8, seed=1)
    with pytest.raises(GemmError, match=r"no gradients of its own. Use `matmul`"):
        jax.grad(lambda lhs: jnp.sum(multiply(lhs, rhs, mesh=make_mesh((2, 2)), kernel="pallas")))(lhs)


def test_pallas_is_imported_only_for_the_kernel():
    code = "import sys, jaxquard.gemm.layers.dense; print([name for name in sys.modules if 'pallas' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_default_is_xla():
    assert AlgorithmOptions().kernel is Kernel.XLA
    matrix = jax.ShapeDtypeStruct((64, 64), np.float32)
    jaxpr = jax.make_jaxpr(lambda lhs, rhs: multiply(lhs, rhs, mesh=make_mesh((2, 2))))(matrix, matrix)
    assert "pallas_call" not in str(jaxpr)
