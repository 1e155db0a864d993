"""Equimo's vision models, which are Equinox modules: found by the paths of their parameters."""

import warnings

import jax
import jax.numpy as jnp
import pytest

from tests.field.pipelined import MICROBATCHES, check_model

pytest.importorskip("equimo")
pytestmark = pytest.mark.filterwarnings("ignore")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import equinox as eqx
    from equimo.models.convnext import ConvNeXt
    from equimo.models.vit import VisionTransformer
    from equimo.models.vssd import Vssd


def random_images(size):
    return jax.random.normal(jax.random.key(1), (MICROBATCHES, 2, 3, size, size))


def loss_of(model):
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def loss(params, images):
        def predict(image):
            return eqx.combine(params, static)(image, key=jax.random.key(0), inference=True)

        return jnp.mean(jax.nn.logsumexp(jax.vmap(predict)(images), axis=-1))

    return loss, params


def test_vision_transformer():
    model = VisionTransformer(
        img_size=8,
        in_channels=3,
        dim=16,
        patch_size=4,
        num_heads=[2],
        depths=[3],
        num_classes=5,
        key=jax.random.key(0),
    )
    check_model(*loss_of(model), random_images(8), "blocks.0.blocks.*", num_stages=3)


def conv_next():
    model = ConvNeXt(
        depths=[1, 2, 1, 1],
        dims=[8, 12, 16, 24],
        layer_scale_init_value=0.1,
        num_classes=5,
        key=jax.random.key(0),
    )
    return loss_of(model)


def test_conv_next():
    """A stage of the pipeline for each resolution."""
    check_model(*conv_next(), random_images(32), "blocks.*", num_stages=4)


def test_vision_state_space_model():
    """A chunk of Mamba-2 blocks, and one of attention."""
    model = Vssd(
        img_size=16,
        in_channels=3,
        dim=8,
        d_state=4,
        depths=[1, 1],
        num_heads=[2, 2],
        attentions_layers=("mamba2mixer", "attention"),
        num_classes=5,
        key=jax.random.key(0),
    )
    check_model(*loss_of(model), random_images(16), "blocks.*", num_stages=2)
