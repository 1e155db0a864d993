"""A product's shardings and moves against the tables of the paper, written out; what runs is what is priced."""

import itertools

import pytest
from jax.sharding import PartitionSpec as P

from jaxquard.cluster import Axis
from jaxquard.gemm import Dataflow, FcLayer, Product, Stationary
from jaxquard.gemm.algorithms.products.layer_products import layer_products, sized_products
from jaxquard.gemm.algorithms.products.shardings import lhs_spec, out_spec, rhs_spec
from jaxquard.gemm.layers.resolve_plan import resolve_plan
from tests.gemm.sized_products import sized_product

RC, CR = P("rows", "columns"), P("columns", "rows")
SHAPE = {"rows": 4, "columns": 2}


@pytest.mark.parametrize(
    ("dataflow", "lhs", "rhs", "sliced"), [("os", RC, RC, "K"), ("ls", RC, CR, "N"), ("rs", CR, RC, "M")]
)
def test_shardings_of_each_dataflow(dataflow, lhs, rhs, sliced):
    product = Product(dataflow=Dataflow(dataflow))
    assert (lhs_spec(product), rhs_spec(product), out_spec(product)) == (lhs, rhs, RC)
    assert product.sliced_dim == sliced
    assert product.mirrored().mirrored() == product == product.transposed().transposed()


@pytest.mark.parametrize(
    ("dataflow", "moving", "local", "sliced"),
    [
        ("os", [("A", "columns", 3 * 5, False), ("B", "rows", 5 * 7, False)], (8, 80, 56), (8, 20, 56)),
        ("ls", [("B", "rows", 5 * 7, False), ("C", "columns", 3 * 7, True)], (8, 40, 112), (8, 40, 28)),
        ("rs", [("A", "columns", 3 * 5, False), ("C", "rows", 3 * 7, True)], (48, 20, 56), (12, 20, 56)),
    ],
)
def test_moves_and_shapes_of_each_dataflow(dataflow, moving, local, sliced):
    small = sized_product(dataflow=Dataflow(dataflow), m=3, k=5, n=7)
    assert [(m.name, m.axis.value, m.num_elements, m.is_output) for m in small.moving] == moving
    m = 32 if dataflow != "rs" else 48
    large = sized_product(dataflow=Dataflow(dataflow), m=m, k=80, n=112)
    assert large.local_shape((4, 2)) == local
    assert large.slice_shape((4, 2), 4) == sliced


@pytest.mark.parametrize(("stationary", "is_transposed"), list(itertools.product(Stationary, [False, True])))
def test_what_runs_is_what_is_priced(stationary, is_transposed):
    """The matrices that move, and along which axes, are the same in both forms of a layer's products."""
    layer = FcLayer(name="fc", in_features=5, out_features=7)
    executed = layer_products(stationary, is_transposed=is_transposed)
    priced = sized_products(layer, num_rows=3, stationary=stationary, is_transposed=is_transposed)
    shapes = {"x": {3, 5}, "w": {5, 7}, "y": {3, 7}}
    moved_along = []
    for product, sized, (lhs, rhs, out) in zip(executed, priced, ("xwy", "ywx", "xyw"), strict=True):
        specs = {lhs: lhs_spec(product), rhs: rhs_spec(product), out: out_spec(product)}
        moving = {frozenset(shapes[name]): name for name in specs if name != stationary.value}
        sizes = {3 * 5: {3, 5}, 5 * 7: {5, 7}, 3 * 7: {3, 7}}
        moved_along.append({moving[frozenset(sizes[m.num_elements])]: m.axis for m in sized.moving})
        assert {m.is_output for m in sized.moving if moving[frozenset(sizes[m.num_elements])] == out} <= {True}
        # The sliced dim of an array as it is written is sharded over the axis along which its matrix moves.
        for name, axis in moved_along[-1].items():
            layout = {lhs: "MK", rhs: "KN", out: "MN"}[name]
            assert specs[name][layout.index(product.sliced_dim)] == axis.value
    # Each matrix moves along the same direction in all three products.
    assert moved_along[0] == moved_along[1] == moved_along[2]


@pytest.mark.parametrize(
    ("stationary", "is_transposed", "ring"), list(itertools.product("yxw", [False, True], ["rows", "columns"]))
)
def test_a_ring_stays_where_the_user_said(stationary, is_transposed, ring):
    """Though rows and columns of the mesh change their parts in some products."""
    layer = resolve_plan(
        None,
        rows=("rows",),
        columns=("columns",),
        shape=SHAPE,
        algorithm="wang",
        stationary=stationary,
        is_transposed=is_transposed,
        ring=ring,
    )
    for _, product, options in layer:
        assert product.axes(options.ring) == (ring,)
    assert {options.ring for _, _, options in layer} <= set(Axis)
