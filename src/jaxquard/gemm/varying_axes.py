"""Over which manual axes a value of a `shard_map` may differ: one name in JAX 0.10, another before and after."""

import jax


def varying_axes(value: jax.Array) -> frozenset[str]:
    """The mesh axes along which chips may have different values; none where `shard_map` does not check."""
    kind = jax.typeof(value)
    manual = getattr(kind, "mat", None)
    return getattr(kind, "vma", frozenset()) if manual is None else manual.varying
