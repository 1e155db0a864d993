"""The U-Net of Stable Diffusion in diffusers' Flax: outputs of the way down skip the stages between."""

import jax
import jax.numpy as jnp
import pytest

from tests.field.pipelined import MICROBATCHES, check_model

diffusers = pytest.importorskip("diffusers")
pytest.importorskip("diffusers.models.modeling_flax_utils")
pytestmark = pytest.mark.filterwarnings("ignore")


def test_conditional_unet():
    model = diffusers.FlaxUNet2DConditionModel(
        sample_size=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        block_out_channels=(64, 64),  # groups of two channels: the norm would take away a bias of one
        layers_per_block=1,
        attention_head_dim=2,
        cross_attention_dim=16,
    )
    keys = jax.random.split(jax.random.key(1), 3)
    batch = {
        "sample": jax.random.normal(keys[0], (MICROBATCHES, 2, 4, 8, 8)),
        "noise": jax.random.normal(keys[1], (MICROBATCHES, 2, 4, 8, 8)),
        "text": jax.random.normal(keys[2], (MICROBATCHES, 2, 5, 16)),
        "time": jnp.arange(MICROBATCHES * 2).reshape(MICROBATCHES, 2),
    }

    def loss(params, batch):
        found = model.apply({"params": params}, batch["sample"], batch["time"], batch["text"]).sample
        return jnp.mean((found - batch["noise"]) ** 2)

    params = model.init_weights(jax.random.key(0))
    check_model(loss, params, batch, ["down_blocks_0", "mid_block", "up_blocks_0"], num_stages=4)
