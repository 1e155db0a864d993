"""The seconds of a program's kernels under the shardings of its values."""

from collections.abc import Sequence

import jax.numpy as jnp

from jaxquard.cluster import Times
from jaxquard.pricing.roofline.body_work import BodyWork
from jaxquard.pricing.roofline.fuse import FusedKernel
from jaxquard.pricing.roofline.mesh_times import MeshTimes
from jaxquard.pricing.roofline.partition import ChosenPartition
from jaxquard.pricing.roofline.prepare import PreparedEquation, PreparedJaxpr, WorkKind
from jaxquard.pricing.roofline.program_cost import KernelCost

# Passes over memory of kernels that read more, or less, than their arrays once.
_SORT_PASSES = 8
# The types that kernels are measured in, as their measurements name them.
_HLO_NAMES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}


class KernelCosts:
    """Prices the kernels of one program."""

    def __init__(
        self,
        prepared: PreparedJaxpr,
        *,
        names: tuple[str, ...],
        sizes: tuple[int, ...],
        times: Times,
        mesh_times: MeshTimes,
    ) -> None:
        self._prepared = prepared
        self._names = names
        self._sizes = sizes
        self._times = times
        self._mesh = mesh_times

    def price(self, kernel: FusedKernel, chosen: Sequence[ChosenPartition], local: Sequence[int]) -> KernelCost:
        """Returns the seconds of a kernel, given the bytes of all values on one device."""
        first = kernel.positions[0]
        equation = self._prepared.equations[first]
        if equation.kind is WorkKind.PRODUCT:
            time_s = self._product_s(equation, chosen[first])
        elif equation.body is not None:
            time_s = self._body_s(equation.body, chosen[first].num_parts)
        else:
            time_s = self._pass_s(kernel, equation, chosen, local)
        return KernelCost(positions=kernel.positions, time_s=time_s)

    def flops(self, kernel: FusedKernel, chosen: Sequence[ChosenPartition]) -> float:
        """Returns the FLOPs of a kernel's products on one device."""
        first = kernel.positions[0]
        equation = self._prepared.equations[first]
        if equation.sizes is not None:
            return equation.sizes.flops / chosen[first].num_parts
        if equation.body is not None:
            return equation.body.flops / (1 if equation.body.is_local else chosen[first].num_parts)
        return 0.0

    def _product_s(self, equation: PreparedEquation, chosen: ChosenPartition) -> float:
        assert equation.sizes is not None
        parts: dict[str, int] = dict.fromkeys(("b", "m", "n", "k"), 1)
        for letter, size in zip(chosen.letters, self._sizes, strict=True):
            if letter:
                parts[letter] *= size
        sizes = equation.sizes
        out = self._prepared.sizes_bytes[equation.outputs[0]]
        elements = max(1, sizes.batch * sizes.m * sizes.n)
        return self._times.product(
            batch=max(1.0, sizes.batch / parts["b"]),
            m=max(1.0, sizes.m / parts["m"]),
            k=max(1.0, sizes.k / parts["k"]),
            n=max(1.0, sizes.n / parts["n"]),
            dtype=jnp.dtype(equation.work.dtype).name,
            output_item_bytes=max(1, round(out / elements)),
        )

    def _body_s(self, body: BodyWork, num_parts: int) -> float:
        """Returns the seconds of a body; of its own collectives, all but the first hide behind its products."""
        parts = 1 if body.is_local else num_parts
        compute_s = self._times.memory_pass(body.size_bytes / parts) if body.size_bytes else 0.0
        for product in body.products:
            sizes = product.sizes
            compute_s += product.times * self._times.product(
                batch=sizes.batch,
                m=max(1.0, sizes.m / parts),
                k=sizes.k,
                n=sizes.n,
                dtype=jnp.dtype(product.dtype).name,
                output_item_bytes=product.output_item_bytes,
            )
        times_s = []
        for kind, names, size_bytes, times in body.collectives:
            axes = tuple(number for number, name in enumerate(self._names) if name in names)
            times_s += [self._mesh.collective_s(kind, axes, size_bytes)] * times
        if not times_s:
            return compute_s
        return max(compute_s, sum(times_s[1:])) + times_s[0]

    def _pass_s(
        self, kernel: FusedKernel, first: PreparedEquation, chosen: Sequence[ChosenPartition], local: Sequence[int]
    ) -> float:
        written = sum(local[number] for number in kernel.written)
        if first.kind is WorkKind.KERNEL:
            size_bytes = self._kernel_bytes(first, local)
        else:
            size_bytes = written + sum(min(local[number] for number in chain) for chain in kernel.read)
        arithmetic = sum(
            self._prepared.equations[position].arithmetic / chosen[position].num_parts for position in kernel.positions
        )
        dtype = _HLO_NAMES.get(first.work.dtype_name, "")
        return self._times.memory_pass(size_bytes, dtype=dtype, arithmetic=arithmetic) if size_bytes else 0.0

    def _kernel_bytes(self, equation: PreparedEquation, local: Sequence[int]) -> int:
        """Returns the bytes that a look-up, an update or a sort reads and writes."""
        inputs = [local[number] if number >= 0 else 0 for number in equation.inputs]
        outputs = sum(local[number] for number in equation.outputs)
        if equation.name in ("gather", "dynamic_slice"):
            return 2 * outputs + sum(inputs[1:])
        if equation.name == "dynamic_update_slice":
            return 2 * sum(inputs[1:])
        if equation.name.startswith("scatter"):
            return outputs + 2 * sum(inputs[1:])
        return (sum(inputs) + outputs) * (_SORT_PASSES if equation.name in ("sort", "top_k") else 1)
