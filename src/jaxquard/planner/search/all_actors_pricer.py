"""Measures the programs of one actor while all actors of the host run the same."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace

from jaxquard.pipeline.passes.own_mesh import MeshWriter
from jaxquard.pricing import Failure, MeasuredPricer, OnProgress, Price
from jaxquard.pricing.program.sharded_program import ShardedProgram, abstract_mesh


class AllActorsPricer(MeasuredPricer):
    """Prices programs of an actor on a mesh with an axis more, of the actors; nothing is sharded over it.

    A `shard_map` in a program names the mesh of one actor: so 2D products are written, and sorted rows of experts.
    """

    def price_all(
        self,
        programs: Sequence[ShardedProgram],
        *,
        groups: Sequence[Hashable] | None = None,
        on_progress: OnProgress | None = None,
        end_s: float = math.inf,
    ) -> list[Price | Failure]:
        """The prices of many, in their order; see `Pricer`."""
        writer = MeshWriter(abstract_mesh(self.mesh), is_larger=True)
        moved = [replace(one, jaxpr=writer.rewrite_closed(one.jaxpr)) for one in programs]
        return super().price_all(moved, groups=groups, on_progress=on_progress, end_s=end_s)
