"""Products and norms of a block that run elsewhere: on a 2D mesh, by a plan (`jaxquard.gemm.products`).

A block has four products, whatever the model: `qkv`, `out`, `ff1` and `ff2`. What is one product there may be several
kernels here; they are joined so that the dims of heads, or of the hidden features of the MLP, come first. These are
sharded, so that splitting what the product gives stays on a chip, and so does joining the kernels.
"""

from typing import Any, Protocol

import jax
from jax.sharding import NamedSharding, PartitionSpec

from jaxquard.models.layers.parts import Params


class Products(Protocol):
    """The products and norms of a block; `layer` is the product, or the one after the norm."""

    def matmul(self, x: jax.Array, w: jax.Array, *, layer: str) -> jax.Array: ...

    def layer_norm(
        self, x: jax.Array, scale: jax.Array, bias: jax.Array | None = None, *, layer: str, epsilon: float = 1e-5
    ) -> jax.Array: ...

    def rms_norm(self, x: jax.Array, scale: jax.Array, *, layer: str, epsilon: float = 1e-5) -> jax.Array: ...

    def shardings(self, layer: str) -> dict[str, NamedSharding]: ...


def project(products: Products, layer: str, inputs: jax.Array, kernel: jax.Array, bias: Any = None) -> jax.Array:
    """The product of a layer, in the dtype of its inputs, plus the bias where there is one."""
    outputs = products.matmul(inputs, kernel.astype(inputs.dtype), layer=layer)
    return outputs if bias is None else outputs + bias.astype(inputs.dtype)


class LayerSpecs:
    """The shardings of the parameters of one product."""

    def __init__(self, products: Products, layer: str) -> None:
        found = products.shardings(layer)
        self.mesh = found["w"].mesh
        self.inputs, self.outputs = found["w"].spec
        self.features = {name: found[name].spec[-1] for name in ("x", "y")}

    def kernel(self, shape: str) -> NamedSharding:
        """Of a kernel whose dims are the inputs ("i"), the outputs ("o") and whole ones ("-")."""
        return self._sharding(self.inputs if dim == "i" else self.outputs if dim == "o" else None for dim in shape)

    def bias(self, shape: str) -> NamedSharding:
        """Of a bias whose dims are the outputs ("o") and whole ones."""
        return self._sharding(self.features["y"] if dim == "o" else None for dim in shape)

    def norm(self, params: Params, stacked: str = "") -> Params:
        """Of the parameters of the norm before the product; `stacked` are the whole dims before."""
        return {name: self._sharding([*(None for _ in stacked), self.features["x"]]) for name in params}

    def _sharding(self, entries: Any) -> NamedSharding:
        return NamedSharding(self.mesh, PartitionSpec(*entries))


def replicate_others(params: Params, shardings: Params, mesh: Any) -> Params:
    """The shardings of all parameters, given those of some."""
    whole = NamedSharding(mesh, PartitionSpec())
    return jax.tree.map(lambda _: whole, params) | shardings
