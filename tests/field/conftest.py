"""Fixtures for public models: names that a newer JAX no longer has."""

import functools

import jax.numpy as jnp
import pytest


@pytest.fixture
def clip_with_old_names(monkeypatch):
    """The T5 of transformers 4.57 calls `jnp.clip(x, a_max=...)`, a name that JAX no longer has."""

    @functools.wraps(jnp.clip)
    def clip(array, *args, a_max=None, **options):
        return original(array, *args, max=a_max, **options) if a_max is not None else original(array, *args, **options)

    original = jnp.clip
    monkeypatch.setattr(jnp, "clip", clip)
