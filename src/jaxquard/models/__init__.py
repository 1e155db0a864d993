"""Models in plain JAX with their published sizes; marks are passed in, so they stand alone."""

from . import gpt as gpt
