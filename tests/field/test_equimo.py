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
    from equimo.models.vit import VisionTransformer


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
    images = jax.random.normal(jax.random.key(1), (MICROBATCHES, 2, 3, 8, 8))
    check_model(*loss_of(model), images, "blocks.0.blocks.*", num_stages=3)
