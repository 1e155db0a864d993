"""Convolutions are sharded by the batch, by channels, or along the image if the batch is too small."""

import jax
import jax.numpy as jnp
import pytest

from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.intraop.shardings.whole_step import write_whole_step
from jaxquard.pricing import RooflinePricer
from jaxquard.pricing.program.lower_program import lower_program
from tests.intraop.blocks.test_no_communication import collectives
from tests.intraop.same_numbers import check_step
from tests.intraop.steps import LINE, analyse, inputs, mesh_of, names_of, sgd, weights

CHANNELS, SIZE = 32, 16
KERNEL = 3 * 3 * CHANNELS * CHANNELS


def residual_net(*, batch, stride=1, size=SIZE, head=True):
    def convolve(x, kernel, stride=1):
        return jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def loss(params, x):
        for first, second in (("a", "b"), ("c", "d")):
            x = x + convolve(jax.nn.relu(convolve(x, params[first])), params[second])
        return jnp.mean((convolve(x, params["e"], stride) if head else x) ** 2)

    kernels = weights(**dict.fromkeys("abcde" if head else "abcd", (3, 3, CHANNELS, CHANNELS)))
    return sgd(loss), (kernels, inputs(batch, size, size, CHANNELS))


def large_collectives(analysis, *names):
    assignment = {block.number: (names[block.number % len(names)],) for block in analysis.blocks}
    program = write_whole_step(StepPrograms(analysis), assignment)
    found = collectives(lower_program(program, mesh=mesh_of(**LINE)).compile())
    return {key: count for key, count in found.items() if key[1] > 1}


def rows_dims(analysis):
    return {block.choice("rows").partitions[0].in_dims[0] for block in analysis.blocks}


@pytest.mark.usefixtures("quick_compilation")
class TestCommunication:
    def test_of_channels_is_a_sum_for_every_other_convolution(self):
        analysis = analyse(*residual_net(batch=8, head=False))
        assert names_of(analysis) == [("rows", "columns", "contracted")] * 4
        image = 8 * SIZE * SIZE * CHANNELS
        # Forward of both residuals, and backward of the second.
        assert large_collectives(analysis, "columns", "contracted") == {("all-reduce", image): 3}

    def test_of_the_batch_is_a_sum_for_every_kernel(self):
        analysis = analyse(*residual_net(batch=8))
        assert rows_dims(analysis) == {0}
        assert large_collectives(analysis, "rows") == {("all-reduce", KERNEL): 5}

    @pytest.mark.parametrize("stride", [1, pytest.param(2, marks=pytest.mark.slow)])
    def test_along_the_image_neighbours_exchange_the_rows_that_windows_reach(self, stride):
        """Two images on eight devices."""
        analysis = analyse(*residual_net(batch=2, stride=stride))
        assert rows_dims(analysis) == {1}
        found = large_collectives(analysis, "rows")
        assert found.pop(("all-reduce", KERNEL)) == 5
        row = 2 * SIZE * CHANNELS
        assert {name for name, _ in found} == {"collective-permute"}
        assert max(size for _, size in found) <= row


class TestSameNumbers:
    def test_along_the_image(self):
        step, args = residual_net(batch=2)
        analysis = analyse(step, args)
        check_step(step, args, analysis, [dict.fromkeys(range(5), ("rows",))], mesh=mesh_of(x=8))

    @pytest.mark.slow
    @pytest.mark.parametrize("stride", [1, 2])
    def test_with_strides_and_beside_channels(self, stride):
        step, args = residual_net(batch=2, stride=stride)
        analysis = analyse(step, args)
        mixed = {block: (("rows", "columns", "contracted")[block % 3],) for block in range(5)}
        check_step(step, args, analysis, [dict.fromkeys(range(5), ("rows",)), mixed], mesh=mesh_of(x=8))


def test_an_image_that_the_devices_do_not_divide_is_not_sharded():
    analysis = analyse(*residual_net(batch=2, size=12))
    assert names_of(analysis) == [("columns", "contracted")] * 5


def test_by_modelled_prices_a_small_batch_of_large_images_is_sharded_along_them():
    """The rows that neighbours exchange are few, where channels sum whole images."""
    step, (kernels, image) = residual_net(batch=2)
    image = jax.ShapeDtypeStruct((2, 256, 256, CHANNELS), image.dtype)
    analysis = analyse(step, (kernels, image))
    programs = StepPrograms(analysis)
    pricer = RooflinePricer("h100-8", jax.sharding.AbstractMesh((8,), ("x",)))
    rows, channels = (
        pricer.price(write_whole_step(programs, {block: (names[block % 2],) for block in range(5)}))
        for names in (("rows", "rows"), ("columns", "contracted"))
    )
    assert rows.time_s < channels.time_s / 2
