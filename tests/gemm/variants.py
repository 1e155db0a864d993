"""Every algorithm, with the options that change what it does."""

from dataclasses import dataclass, field
from typing import Any

from jaxquard.gemm import ALGORITHMS
from tests.gemm.meshes import MESHES


@dataclass(frozen=True, kw_only=True)
class Variant:
    name: str
    algorithm: str
    options: dict[str, Any] = field(default_factory=dict)

    def fits(self, mesh_shape: tuple[int, int]) -> bool:
        return mesh_shape[0] == mesh_shape[1] or not ALGORITHMS[self.algorithm].is_square


VARIANTS = {
    name: Variant(name=name, algorithm=algorithm, options=options)
    for name, algorithm, options in (
        ("meshslice-1", "meshslice", {"slices": 1}),
        ("meshslice-2", "meshslice", {"slices": 2, "block": 2}),
        ("meshslice-4", "meshslice", {"slices": 4, "block": 1}),
        ("meshslice-parts", "meshslice", {"slices": 4, "block": 1, "split_for_overlap": True}),
        ("collective", "collective", {}),
        ("wang-rows", "wang", {"ring": "rows"}),
        ("wang-columns", "wang", {"ring": "columns"}),
        ("wang-unrolled", "wang", {"slices": 2}),
        ("wang-both-ways", "wang", {"bidirectional": True}),
        ("wang-both-ways-unrolled", "wang", {"bidirectional": True, "slices": 2}),
        ("summa", "summa", {}),
        ("summa-unrolled", "summa", {"slices": 2}),
        ("summa-packets", "summa", {"num_packets": 2}),
        ("cannon", "cannon", {}),
        ("1d_tp", "1d_tp", {}),
        ("1d_tp-both-ways", "1d_tp", {"bidirectional": True, "slices": 4}),
        ("fsdp", "fsdp", {}),
    )
}

EVERY_CASE = [
    (mesh_shape, name) for mesh_shape in MESHES for name, variant in VARIANTS.items() if variant.fits(mesh_shape)
]


def mesh_id(value: Any) -> str | None:
    """For `parametrize(ids=...)`: meshes as 4x2."""
    return "x".join(map(str, value)) if isinstance(value, tuple) else None
