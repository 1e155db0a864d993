"""The exact search: layouts, algorithms and slice counts of all layers on every mesh, finalists simulated.

On each mesh every form of every layer is priced with every algorithm at every slice count, as it would run: with the
memory that products and transfers share, and with the transfers that the target's compiler does not hide. Dynamic
programming (`layouts.py`) then finds the best sequence of forms, so that nothing better is left out at these prices.
The meshes that come near the best are simulated, with the best few slice counts of each product.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxquard.cluster import Cluster
from jaxquard.cluster.cluster import Axis
from jaxquard.errors import InfeasibleGemmError
from jaxquard.gemm.algorithms.products.layer_products import SizedProducts, sized_products
from jaxquard.gemm.algorithms.products.sized_product import MeshShape, SizedProduct
from jaxquard.gemm.algorithms.registry import find_algorithm, mesh_shapes
from jaxquard.gemm.autotune.layouts import LAYER_LAYOUTS, LayerLayout, LayoutStep, best_layouts
from jaxquard.gemm.autotune.meshes import usable_meshes
from jaxquard.gemm.autotune.slices import PricedOptions, iteration_counts, price_slices, uses_bidirectional_rings
from jaxquard.gemm.autotune.table import TuningRow
from jaxquard.gemm.cost.cost import GemmCost, repeat_cost, sum_costs
from jaxquard.gemm.cost.play import play_steps_s
from jaxquard.gemm.cost.products import problem_flops
from jaxquard.gemm.cost.ring_transfers import transpose_time_s
from jaxquard.gemm.cost.steps import minimum_time_s, product_steps
from jaxquard.gemm.problem import MIXED, FcLayer, GemmPlan, GemmProblem, LayerPlan

NEAR = 1.1
"""Meshes and slice counts whose price is within this factor of the best are simulated."""
NUM_FINALISTS = 4
# Slice counts within this factor of the best are as good, and the fewest are taken: each slice is a product to launch.
_TIE = 1.001


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """An algorithm in one of its forms."""

    algorithm: str
    split_for_overlap: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedLayer:
    """A layer with a form, by one algorithm: for each product its options, the best first."""

    variant: Variant
    products: tuple[tuple[PricedOptions, ...], ...]

    @property
    def time_s(self) -> float:
        return sum(options[0].cost.time_s for options in self.products)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactSearch:
    """The search on every mesh.

    Attributes:
        variants: the algorithms to choose from, layer by layer.
        forms: that each layer may have.
        num_slices: the only slice count, where it divides, if it is given.
        kept_bytes: the memory of a chip that does not depend on the plan.
    """

    problem: GemmProblem
    cluster: Cluster
    variants: tuple[Variant, ...]
    block: int
    kept_bytes: float
    limit_bytes: float
    forms: tuple[LayerLayout, ...] = LAYER_LAYOUTS
    num_slices: int | None = None

    def row(self, mesh: MeshShape) -> tuple[TuningRow, tuple[PricedLayer, ...]] | None:
        """Returns the best plan on a mesh, with the options it was chosen from; None if nothing fits."""
        steps = [self._layout_step(layer, mesh) for layer in self.problem.layers]
        found = best_layouts(steps)
        if found is None:
            return None
        time_s, path = found
        forms, layers = tuple(form for form, _ in path), tuple(layer for _, layer in path)
        return self.make_row(mesh, forms, layers, transposes_s=time_s - sum(layer.time_s for layer in layers)), layers

    def _layout_step(self, layer: FcLayer, mesh: MeshShape) -> LayoutStep[PricedLayer]:
        rows, item_bytes = self.problem.num_rows, self.problem.item_bytes
        choices = {}
        for form in self.forms:
            priced = self._price_layer(layer, form, mesh)
            if priced is not None:
                choices[form] = (priced.time_s, priced)
        chips = mesh[0] * mesh[1]
        input_s, output_s = (
            2 * transpose_time_s(self.cluster, shard_bytes=item_bytes * rows * features / chips, mesh_shape=mesh)
            for features in (layer.in_features, layer.out_features)
        )
        return LayoutStep(
            choices=choices, transpose_s=input_s, output_transpose_s=output_s, ends_residual=layer.ends_residual
        )

    def _price_layer(self, layer: FcLayer, form: LayerLayout, mesh: MeshShape) -> PricedLayer | None:
        """Returns the fastest algorithm for a layer, the same for its three products; None if none can be used."""
        products = self._products(layer, form)
        if not all(product.is_divided_by(mesh) for product in products):
            return None
        best = None
        for variant in self.variants:
            if mesh not in mesh_shapes(variant.algorithm, mesh[0] * mesh[1]):
                continue
            if best is not None and best.time_s <= sum(
                minimum_time_s(self.cluster, product, algorithm=variant.algorithm, mesh_shape=mesh)
                for product in products
            ):
                continue
            options = tuple(self._price_product(product, variant, mesh) for product in products)
            if all(options):
                priced = PricedLayer(variant=variant, products=options)
                if best is None or priced.time_s < best.time_s:
                    best = priced
        return best

    def _price_product(self, product: SizedProduct, variant: Variant, mesh: MeshShape) -> tuple[PricedOptions, ...]:
        """Returns the options of a product that fit in memory: the fastest first, of near equals the fewest slices."""
        counts = iteration_counts(variant.algorithm, product, mesh_shape=mesh, block=self.block)
        if self.num_slices is not None:
            counts = (max(count for count in counts if count <= self.num_slices),)
        priced = price_slices(
            self.cluster,
            product,
            algorithm=variant.algorithm,
            mesh_shape=mesh,
            counts=counts,
            split_for_overlap=variant.split_for_overlap,
            memory_contention=True,
        )
        fitting = [one for one in priced if self.kept_bytes + one.cost.buffer_bytes <= self.limit_bytes]
        if not fitting:
            return ()
        ties = [one for one in fitting if one.cost.time_s <= _TIE * fitting[0].cost.time_s]
        fewest = min(ties, key=lambda one: one.num_slices)
        return (fewest, *(one for one in fitting if one is not fewest))

    def simulate(self, row: TuningRow, layers: Sequence[PricedLayer]) -> TuningRow:
        """Returns a finalist with the slice counts that the simulator finds best among the nearest, and its time."""
        refined, total_s = [], 0.0
        forms = tuple(
            LayerLayout(stationary=layer.stationary, is_transposed=layer.is_transposed) for layer in row.plan.layers
        )
        for layer, form, sizes in zip(layers, forms, self.problem.layers, strict=True):
            chosen = []
            for product, options in zip(self._products(sizes, form), layer.products, strict=True):
                time_s, best = self._simulate_product(product, layer.variant, options, row.mesh_shape)
                total_s += time_s
                chosen.append((best,))
            refined.append(replace(layer, products=tuple(chosen)))
        transposes_s = row.time_s / self.problem.num_blocks - sum(layer.time_s for layer in layers)
        made = self.make_row(row.mesh_shape, forms, tuple(refined), transposes_s=transposes_s)
        return replace(made, simulated_s=(total_s + transposes_s) * self.problem.num_blocks)

    def _products(self, layer: FcLayer, form: LayerLayout) -> SizedProducts:
        return sized_products(
            layer,
            num_rows=self.problem.num_rows,
            stationary=form.stationary,
            is_transposed=form.is_transposed,
            item_bytes=self.problem.item_bytes,
        )

    def meshes(self, num_chips: int, mesh_shape: MeshShape | None) -> list[MeshShape]:
        """Returns the meshes of so many chips that divide every layer in one of its forms.

        Raises:
            InfeasibleGemmError: there is none; it says why, with the nearest numbers of chips and sizes that fit.
        """
        names = dict.fromkeys(variant.algorithm for variant in self.variants)
        shapes = {shape for name in names for shape in mesh_shapes(name, num_chips) if mesh_shape in (None, shape)}
        usable = [
            shape for shape in sorted(shapes) if all(self._divides(layer, shape) for layer in self.problem.layers)
        ]
        if not usable:
            plain = [LayerPlan(name=layer.name, stationary=self.forms[0].stationary) for layer in self.problem.layers]
            most_chips = self.cluster.num_chips
            usable_meshes(self.problem, plain, next(iter(names)), num_chips, mesh_shape, most_chips=most_chips)
        return usable

    def _divides(self, layer: FcLayer, mesh: MeshShape) -> bool:
        return any(all(one.is_divided_by(mesh) for one in self._products(layer, form)) for form in self.forms)

    def _simulate_product(
        self, product: SizedProduct, variant: Variant, options: Sequence[PricedOptions], mesh: MeshShape
    ) -> tuple[float, PricedOptions]:
        near = [one for one in options if one.cost.time_s <= NEAR * options[0].cost.time_s][:NUM_FINALISTS]
        times_s = []
        for one in near:
            steps = product_steps(
                self.cluster, product, algorithm=variant.algorithm, mesh_shape=mesh, options=one.options
            )
            times_s.append(play_steps_s(steps, self.cluster))
        shortest_s = min(times_s)
        ties = [position for position, time_s in enumerate(times_s) if time_s <= _TIE * shortest_s]
        best = min(ties, key=lambda position: near[position].num_slices)
        return times_s[best], near[best]

    def make_row(
        self, mesh: MeshShape, forms: Sequence[LayerLayout], layers: Sequence[PricedLayer], *, transposes_s: float
    ) -> TuningRow:
        """Returns the row of a mesh, given the form and the choices of each layer."""
        names = {layer.variant.algorithm for layer in layers}
        common = names.pop() if len(names) == 1 else MIXED
        plans = tuple(
            _layer_plan(self.cluster, layer.name, form, priced, block=self.block, is_mixed=common == MIXED)
            for layer, form, priced in zip(self.problem.layers, forms, layers, strict=True)
        )
        costs = [options[0].cost for layer in layers for options in layer.products]
        cost = repeat_cost(_add_transposes(sum_costs(costs), transposes_s), self.problem.num_blocks)
        peak = self.cluster.compute.peak_flops_per_s * mesh[0] * mesh[1]
        return TuningRow(
            plan=GemmPlan(algorithm=common, mesh_shape=mesh, layers=plans),
            cost=cost,
            utilisation=problem_flops(self.problem) / (cost.time_s * peak),
            memory_bytes=self.kept_bytes + cost.buffer_bytes,
        )

    def rows(self, meshes: Sequence[MeshShape]) -> list[TuningRow]:
        """Returns the best plan of each mesh, finalists first, by their simulated time; the others by their price.

        Raises:
            InfeasibleGemmError: there is none.
        """
        found = [(row, layers) for row, layers in filter(None, map(self.row, meshes))]
        if not found:
            raise InfeasibleGemmError(self._nothing_text(meshes))
        found.sort(key=lambda one: one[0].time_s)
        limit_s = NEAR * found[0][0].time_s
        near = [one for one in found if one[0].time_s <= limit_s][:NUM_FINALISTS]
        finalists = sorted((self.simulate(row, layers) for row, layers in near), key=_simulated_s)
        return [*finalists, *(row for row, _ in found[len(near) :])]

    def _nothing_text(self, meshes: Sequence[MeshShape]) -> str:
        chips = math.prod(meshes[0])
        return (
            f"nothing fits in {self.limit_bytes / 1e9:.2f} GB of each of {chips} chips of {self.cluster.name}: "
            f"{self.kept_bytes / 1e9:.2f} GB are weights, gradients, optimizer state and activations, and buffers come "
            "on top. Use more chips, recompute=True, fewer rows, or a larger memory_limit_bytes."
        )


def tune_layer(
    problem: GemmProblem, cluster: Cluster, mesh_shape: MeshShape, *, form: LayerLayout, block: int = 8
) -> LayerPlan | None:
    """Returns MeshSlice's best plan for a problem of one layer in a given form; None if the mesh does not divide it."""
    search = ExactSearch(
        problem=problem,
        cluster=cluster,
        variants=variants_of(["meshslice"], cluster),
        forms=(form,),
        block=block,
        kept_bytes=0.0,
        limit_bytes=math.inf,
    )
    found = search.row(mesh_shape)
    return None if found is None else search.simulate(*found).plan.layers[0]


def variants_of(algorithms: Sequence[str], cluster: Cluster) -> tuple[Variant, ...]:
    """Returns the forms of algorithms that may be best on a cluster: a product is split only where that hides more."""
    variants = []
    for name in algorithms:
        variants.append(Variant(algorithm=name))
        if "split_for_overlap" in find_algorithm(name).options and cluster.network.hides_one_collective:
            variants.append(Variant(algorithm=name, split_for_overlap=True))
    return tuple(variants)


def _layer_plan(
    cluster: Cluster, name: str, form: LayerLayout, priced: PricedLayer, *, block: int, is_mixed: bool
) -> LayerPlan:
    first, second, third = (options[0] for options in priced.products)
    slices = (first.num_slices, second.num_slices, third.num_slices)
    algorithm = priced.variant.algorithm
    rings: tuple[Axis | None, Axis | None, Axis | None] = (first.options.ring, second.options.ring, third.options.ring)
    return LayerPlan(
        name=name,
        stationary=form.stationary,
        is_transposed=form.is_transposed,
        slices=slices,
        block=block,
        split_for_overlap=priced.variant.split_for_overlap and max(slices) > 1,
        rings=rings,
        bidirectional=uses_bidirectional_rings(cluster, algorithm),
        num_packets=(first.options.num_packets, second.options.num_packets, third.options.num_packets),
        algorithm=algorithm if is_mixed else None,
    )


def _add_transposes(cost: GemmCost, transposes_s: float) -> GemmCost:
    return replace(cost, time_s=cost.time_s + transposes_s, transfer_s=cost.transfer_s + transposes_s)


def _simulated_s(row: TuningRow) -> float:
    assert row.simulated_s is not None
    return row.simulated_s
