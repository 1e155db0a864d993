"""Closed forms: the formulas of data/tpu_v4.md written out again, breakdowns, sanity, memory."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxquard.cluster import Axis, Topology, load_cluster
from jaxquard.errors import GemmError
from jaxquard.gemm.algorithms.products.layer_products import sized_products
from jaxquard.gemm.algorithms.registry import ALGORITHMS, mesh_shapes
from jaxquard.gemm.autotune.models import gpt3, megatron_nlg
from jaxquard.gemm.autotune.slices import price_slices
from jaxquard.gemm.cost.cost import price_product, steps_time_s
from jaxquard.gemm.cost.products import kept_bytes
from jaxquard.gemm.cost.steps import STEPS, wang_steps
from jaxquard.gemm.problem import DEFAULT_OPTIONS, TABLE_1, AlgorithmOptions, Dataflow, FcLayer, Stationary
from tests.gemm.collectives import expected_traffic
from tests.gemm.meshes import MESHES
from tests.gemm.sized_products import sized_product
from tests.gemm.variants import VARIANTS

_TPU = load_cluster("tpu-v4-simulation")
# A launch takes 1 s, so that seconds of launches are their number.
_LAUNCHES = replace(
    _TPU, **{kind: replace(getattr(_TPU, kind), launch_s=1.0) for kind in ("all_gather", "reduce_scatter", "permute")}
)


def _product(dataflow, m=65536, k=12288, n=36864):
    return sized_product(dataflow=dataflow, m=m, k=k, n=n)


def _by_hand(product, rows, columns, slices):
    """Pipelined time with per-slice h, v, c; only the "simulation" set's numbers, nothing of the package."""
    chips, gather, reduce = rows * columns, 60e9, 50e9
    m, k, n = product.m, product.k, product.n
    moved, kinds = {
        Dataflow.OS: ((m * k, k * n), (gather, gather)),
        Dataflow.LS: ((m * n, k * n), (reduce, gather)),
        Dataflow.RS: ((m * k, m * n), (gather, reduce)),
    }[product.dataflow]
    h, v = (
        100e-6 + (ring - 1) * (6e-6 + 2 * size / chips / slices / bandwidth) if ring > 1 else 0.0
        for ring, size, bandwidth in zip((columns, rows), moved, kinds, strict=True)
    )
    c = 2 * m * k * n / chips / slices / 249e12
    if product.dataflow is Dataflow.OS:
        return max(h, v) + (slices - 1) * max(h, v, c) + c
    return h + v + c + (slices - 1) * max(h, v, c)


@pytest.mark.parametrize("dataflow", Dataflow)
@pytest.mark.parametrize("mesh", [(32, 8), (8, 32), (256, 1), (1, 256), (1, 1)])
@pytest.mark.parametrize("slices", [1, 3, 6])
def test_meshslice_by_hand(dataflow, mesh, slices):
    product = _product(dataflow)
    cost = price_product(_TPU, product, algorithm="meshslice", mesh_shape=mesh, options=AlgorithmOptions(slices=slices))
    assert cost.time_s == pytest.approx(_by_hand(product, *mesh, slices), rel=1e-12)
    if slices == 1:
        assert cost == price_product(_TPU, product, algorithm="collective", mesh_shape=mesh, options=DEFAULT_OPTIONS)


def test_wang_by_hand():
    """8 columns in 4 iterations of 2 shards, or 32 rows in 4 of 8; the other all-gather before; one way or both.

    Every shard is launched, or, where constants are of chains, every iteration.
    """
    product = _product(Dataflow.OS)
    shard_h, shard_v = 2 * product.m * product.k / 256, 2 * product.k * product.n / 256
    c = product.flops / 256 / 4 / 249e12

    def ring(chips, shard, bandwidth, other_chips, other_shard, *, launches_each):
        exposed = 100e-6 + (other_chips - 1) * (6e-6 + other_shard / 60e9)
        first, group = (
            100e-6 * (count if launches_each else 1) + count * (6e-6 + shard / bandwidth)
            for count in (chips // 4 - 1, chips // 4)
        )
        return exposed + first + 3 * max(group, c) + c

    for ways, each in itertools.product((1, 2), (True, False)):
        cluster = replace(_TPU, network=replace(_TPU.network, launches_each_permute=each))
        along = {
            "columns": ring(8, shard_h, ways * 35.2e9, 32, shard_v, launches_each=each),
            "rows": ring(32, shard_v, ways * 38.8e9, 8, shard_h, launches_each=each),
        }
        options = AlgorithmOptions(slices=5, bidirectional=ways == 2)
        for axis, time_s in along.items():
            steps = wang_steps(cluster, product, (32, 8), replace(options, ring=Axis(axis)))
            assert steps_time_s(steps) == pytest.approx(time_s, rel=1e-12)
        # By default the ring runs where more bytes move: 31 shards of B along the rows against 7 of A.
        cost = price_product(cluster, product, algorithm="wang", mesh_shape=(32, 8), options=options)
        assert 31 * shard_v > 7 * shard_h
        assert cost.time_s == pytest.approx(along["rows"], rel=1e-12)


def test_cannon_by_hand():
    """A skew of 8 steps, the shorter way round a ring of 16, and 15 shifts; all of them one way."""
    product = _product(Dataflow.OS)
    shard_h, shard_v = 2 * product.m * product.k / 256, 2 * product.k * product.n / 256
    skew = max(8 * (100e-6 + 6e-6 + shard / b) for shard, b in ((shard_h, 35.2e9), (shard_v, 38.8e9)))
    roll = max(100e-6 + 6e-6 + shard / b for shard, b in ((shard_h, 35.2e9), (shard_v, 38.8e9)))
    c = product.flops / 256 / 16 / 249e12
    cost = price_product(_TPU, product, algorithm="cannon", mesh_shape=(16, 16), options=DEFAULT_OPTIONS)
    assert cost.time_s == pytest.approx(skew + 15 * max(roll, c) + c, rel=1e-12)


def test_summa_by_hand():
    """16 parts in 4 iterations, each streaming in 16 + D - 2 stages, which are permutes or stages of a broadcast."""
    product = _product(Dataflow.OS)
    c = product.flops / 256 / 4 / 249e12
    part_h, part_v = 2 * product.m * product.k / 256, 2 * product.k * product.n / 256
    for packets in (1, 8, 96):
        stages = 16 + packets - 2
        permutes = [
            4 * stages * (100e-6 + 6e-6 + part / packets / bandwidth)
            for part, bandwidth in ((part_h, 35.2e9), (part_v, 38.8e9))
        ]
        broadcasts = [4 * (100e-6 + stages * (6e-6 + part / packets / 60e9)) for part in (part_h, part_v)]
        for has_broadcast, (h, v) in ((False, permutes), (True, broadcasts)):
            cluster = replace(_TPU, network=replace(_TPU.network, has_broadcast=has_broadcast))
            how = {"algorithm": "summa", "mesh_shape": (16, 16)}
            how["options"] = AlgorithmOptions(slices=4, num_packets=packets)
            cost = price_product(cluster, product, **how)
            assert cost.time_s == pytest.approx(max(h, v) + 3 * max(h, v, c) + c, rel=1e-12)


@pytest.mark.parametrize("mesh_shape", MESHES)
@pytest.mark.parametrize("dataflow", Dataflow)
def test_every_operation_that_runs_is_launched(dataflow, mesh_shape):
    """As many launches as compiled programs have collectives; halves that go both ways are launched at once.

    Products in parts are left out: they are priced as the paper's, whose scatter is one operation.
    """
    sizes = {"M": 64, "K": 128, "N": 192}
    product = sized_product(dataflow=dataflow, **{name.lower(): size for name, size in sizes.items()})
    for variant in VARIANTS.values():
        if not variant.fits(mesh_shape) or variant.options.get("split_for_overlap"):
            continue
        chips = math.prod(mesh_shape)
        seen = {"1d_tp": (1, chips), "fsdp": (chips, 1)}.get(variant.algorithm, mesh_shape)
        ring = Axis(variant.options["ring"]) if "ring" in variant.options else None
        how = {name: value for name, value in variant.options.items() if name in ("bidirectional", "num_packets")}
        slices = variant.options.get("slices", 1 if variant.algorithm == "meshslice" else chips)
        options = AlgorithmOptions(slices=slices, ring=ring, **how)
        cost = price_product(_LAUNCHES, product, algorithm=variant.algorithm, mesh_shape=seen, options=options)
        expected = expected_traffic(variant, dataflow.value, sizes=sizes, mesh_shape=mesh_shape)
        at_once = {"collective-permute": 1 + variant.options.get("bidirectional", False)}
        launches = sum(count // at_once.get(kind, 1) for (kind, _), (count, _) in expected.items())
        assert cost.launch_s == pytest.approx(launches), variant.name


_LONG = st.integers(1, 12).map(lambda size: 1024 * size)


@given(
    dataflow=st.sampled_from(Dataflow), m=_LONG, k=_LONG, n=_LONG, mesh=st.sampled_from([(4, 4), (8, 2), (1, 16)]),
    slices=st.sampled_from([1, 2, 4]), name=st.sampled_from(["v5e", "h200"]), each=st.booleans(), has=st.booleans(),
)  # fmt: skip
def test_summas_packets_by_brute_force(dataflow, m, k, n, mesh, slices, name, each, has):
    """Of all packet counts up to 4,096 that divide both parts, the one that is chosen is the fastest."""
    preset, product = load_cluster(name), sized_product(dataflow=dataflow, m=m, k=k, n=n)
    cluster = replace(preset, network=replace(preset.network, launches_each_permute=each, has_broadcast=has))
    best = price_slices(cluster, product, algorithm="summa", mesh_shape=mesh, counts=(slices,))[0]
    extents = {Dataflow.OS: (m, n, k), Dataflow.LS: (m, k, n), Dataflow.RS: (k, n, m)}[dataflow]
    rows, columns, sliced = extents
    parts = (rows // mesh[0] * sliced // math.lcm(*mesh), columns // mesh[1] * sliced // math.lcm(*mesh))
    assert not any(part % best.options.num_packets for part in parts)
    possible = [count for count in range(1, 4097) if not any(part % count for part in parts)]

    def price(num_packets):
        options = AlgorithmOptions(slices=slices, num_packets=num_packets)
        return price_product(cluster, product, algorithm="summa", mesh_shape=mesh, options=options)

    times = [price(count).time_s for count in possible]
    assert best.cost.time_s <= min(times) * (1 + 1e-12)
    assert best.cost == price(best.options.num_packets)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("dataflow", Dataflow)
@pytest.mark.parametrize("name", ["tpu-v4-simulation", "tpu-v4-main", "h200"])
def test_breakdown(algorithm, dataflow, name):
    for mesh in mesh_shapes(algorithm, 16):
        cost = price_product(
            load_cluster(name),
            _product(dataflow),
            algorithm=algorithm,
            mesh_shape=mesh,
            options=AlgorithmOptions(slices=4),
        )
        assert cost.communication_s == pytest.approx(cost.launch_s + cost.transfer_s + cost.sync_s)
        assert -1e-12 <= cost.exposed_s <= cost.communication_s * (1 + 1e-9)
        assert cost.compute_s <= cost.time_s * (1 + 1e-12)


def test_traffic_of_the_1d_baselines():
    """1D tensor parallelism moves the activations, fully sharded data parallelism the weights, all but a shard."""
    layer, rows = FcLayer(name="qkv", in_features=1024, out_features=4096), 8192
    for algorithm, kept, mesh, moved in (
        ("1d_tp", Stationary.W, (1, 16), rows * 1024),
        ("fsdp", Stationary.Y, (16, 1), 1024 * 4096),
    ):
        for product in sized_products(layer, num_rows=rows, stationary=kept):
            options = AlgorithmOptions(slices=16, bidirectional=True)
            cost = price_product(_TPU, product, algorithm=algorithm, mesh_shape=mesh, options=options)
            bandwidth = 2 * _TPU.permute.bandwidth_bytes_per_s(Axis.ROWS if mesh[0] > 1 else Axis.COLUMNS)
            assert cost.transfer_s == pytest.approx(15 * 2 * moved / 16 / bandwidth)


@pytest.mark.parametrize("stationary", Stationary)
def test_products_of_a_layer(stationary):
    layer = FcLayer(name="l", in_features=512, out_features=2048)
    products = sized_products(layer, num_rows=4096, stationary=stationary)
    assert [product.dataflow for product in products] == list(TABLE_1[stationary].values())
    assert {product.flops for product in products} == {2 * 4096 * 512 * 2048}
    assert {(p.m, p.n) for p in products} == {
        Stationary.Y: {(4096, 2048), (4096, 512), (512, 2048)},
        Stationary.X: {(4096, 2048), (4096, 512), (2048, 512)},
        Stationary.W: {(4096, 2048), (512, 4096), (512, 2048)},
    }[stationary]
    kept = {Stationary.Y: 4096 * 2048, Stationary.X: 4096 * 512, Stationary.W: 512 * 2048}[stationary]
    for product in products:
        assert kept not in [moving.num_elements for moving in product.moving]
        assert product.mirrored().mirrored() == product
        # Mirrored, the same matrices move along the other directions of the product's own rows and columns.
        swapped = {(m.num_elements, m.axis is Axis.ROWS, m.is_output) for m in product.mirrored().moving}
        assert swapped == {(m.num_elements, m.axis is Axis.COLUMNS, m.is_output) for m in product.moving}


@pytest.mark.parametrize("stationary", Stationary)
def test_transposed_products_of_a_layer(stationary):
    """The transposed form moves the same matrices along the other directions of the mesh."""
    layer = FcLayer(name="l", in_features=512, out_features=2048)
    plain, transposed = (
        sized_products(layer, num_rows=4096, stationary=stationary, is_transposed=is_transposed)
        for is_transposed in (False, True)
    )
    for one, other in zip(plain, transposed, strict=True):
        assert (other.product.rows, other.product.columns) == (("rows",), ("columns",))
        moved = {(m.num_elements, m.axis.other, m.is_output) for m in one.moving}
        assert moved == {(m.num_elements, m.axis, m.is_output) for m in other.moving}


@pytest.mark.parametrize(
    ("algorithm", "mesh", "own"), [("wang", (4, 8), 8), ("summa", (4, 6), 12), ("meshslice", (4, 8), 1)]
)
def test_left_out_iterations_are_priced_as_they_run(algorithm, mesh, own):
    """One a chip of the ring, a part of SUMMA, or one slice."""
    product, how = sized_product(dataflow=Dataflow.OS, m=49152, k=12288, n=24), {"mesh_shape": mesh}
    price = {
        slices: price_product(_TPU, product, algorithm=algorithm, options=AlgorithmOptions(slices=slices), **how)
        for slices in (None, own)
    }
    assert price[None] == price[own]


def test_rows_and_columns_contend_over_a_switch():
    torus = replace(_TPU, network=replace(_TPU.network, topology=Topology.TORUS))
    switch = replace(_TPU, network=replace(_TPU.network, topology=Topology.SWITCH))
    product = _product(Dataflow.OS)
    h, v = (2 * size / 256 for size in (product.m * product.k, product.k * product.n))
    apart, together = (
        price_product(c, product, algorithm="collective", mesh_shape=(32, 8), options=DEFAULT_OPTIONS)
        for c in (torus, switch)
    )
    assert apart.exposed_s == pytest.approx(max(100e-6 + 7 * (6e-6 + h / 60e9), 100e-6 + 31 * (6e-6 + v / 60e9)))
    assert together.exposed_s == pytest.approx(100e-6 + 31 * 6e-6 + (7 * h + 31 * v) / 60e9)


def test_no_contention_where_directions_take_turns():
    """With one slice a left-stationary product gathers first and scatters last."""
    switch = replace(_TPU, network=replace(_TPU.network, topology=Topology.SWITCH))
    product = _product(Dataflow.LS)
    costs = [
        price_product(c, product, algorithm="collective", mesh_shape=(32, 8), options=DEFAULT_OPTIONS)
        for c in (_TPU, switch)
    ]
    assert costs[0] == costs[1]


def test_slicing_costs_on_a_gpu_when_sums_are_kept():
    """On one chip there is nothing to hide: slices along the contracted dim cost, along the output hardly."""
    gpu = load_cluster("h200")

    def ratio(dataflow, slices):
        product = sized_product(dataflow=dataflow, m=32768, k=3072, n=12288)
        whole, sliced = (
            price_product(gpu, product, algorithm="meshslice", mesh_shape=(1, 1), options=AlgorithmOptions(slices=s))
            for s in (1, slices)
        )
        return (sliced.time_s - whole.time_s) / whole.compute_s

    assert ratio(Dataflow.OS, 8) > 0.9
    assert ratio(Dataflow.LS, 8) < 0.3


_SIZES = st.integers(1, 64).map(lambda size: 256 * size)


@given(dataflow=st.sampled_from(Dataflow), m=_SIZES, k=_SIZES, n=_SIZES, algorithm=st.sampled_from(list(ALGORITHMS)))
def test_slower_hardware_is_never_faster(dataflow, m, k, n, algorithm):
    product = sized_product(dataflow=dataflow, m=m, k=k, n=n)
    mesh = mesh_shapes(algorithm, 16)[0]

    def time_s(cluster):
        return price_product(
            cluster, product, algorithm=algorithm, mesh_shape=mesh, options=AlgorithmOptions(slices=4)
        ).time_s

    base = time_s(_TPU)
    assert base >= product.flops / 16 / 249e12
    for kind in ("all_gather", "reduce_scatter", "permute"):
        links = getattr(_TPU, kind)
        for slower in (
            replace(links, row_bandwidth_bytes_per_s=links.row_bandwidth_bytes_per_s / 2),
            replace(links, column_bandwidth_bytes_per_s=links.column_bandwidth_bytes_per_s / 2),
            replace(links, sync_s=2 * links.sync_s),
            replace(links, launch_s=2 * links.launch_s),
        ):
            assert time_s(replace(_TPU, **{kind: slower})) >= base * (1 - 1e-12)
    compute = _TPU.compute
    for worse in (
        replace(compute, effective_flops_per_s=compute.effective_flops_per_s / 2),
        replace(compute, half_speed_contracted=100.0, half_speed_output=100.0),
        replace(compute, output_exposed=1.0, accumulate_slowdown=0.1, cast_exposed=1.0, slice_copy_exposed=1.0),
    ):
        assert time_s(replace(_TPU, compute=worse)) >= base * (1 - 1e-12)


@given(dataflow=st.sampled_from(Dataflow), m=_SIZES, k=_SIZES, n=_SIZES, slices=st.sampled_from([2, 4, 8]))
def test_slices_shrink_buffers_and_add_launches(dataflow, m, k, n, slices):
    product = sized_product(dataflow=dataflow, m=m, k=k, n=n)
    whole, sliced = (
        price_product(_TPU, product, algorithm="meshslice", mesh_shape=(4, 4), options=AlgorithmOptions(slices=s))
        for s in (1, slices)
    )
    assert sliced.launch_s == pytest.approx(slices * whole.launch_s)
    assert sliced.transfer_s == pytest.approx(whole.transfer_s)
    gathered = sliced.buffer_bytes - (4 * m * n / 16 if dataflow is Dataflow.OS else 0)
    assert gathered == pytest.approx(2 * whole.buffer_bytes / slices)


def test_kept_memory():
    """GPT-3: 2 bytes a weight and a gradient; 7 hidden sizes of activations a row and block, or one and one block's."""
    weights, rows = 96 * 12 * 12288**2, 128 * 2048
    assert kept_bytes(gpt3(), num_chips=256) == pytest.approx(2 * (2 * weights + 96 * rows * 7 * 12288) / 256)
    assert kept_bytes(gpt3(), num_chips=256, recompute=True) == pytest.approx(
        2 * (2 * weights + (96 + 7) * rows * 12288) / 256
    )
    assert math.isclose(weights, 175e9, rel_tol=0.01)
    assert math.isclose(105 * 12 * 20480**2, 530e9, rel_tol=0.01)
    assert megatron_nlg().num_blocks == 105


def test_every_algorithm_is_priced():
    assert list(STEPS) == list(ALGORITHMS)


def test_unknown_algorithm():
    with pytest.raises(
        GemmError, match=r"no GeMM algorithm is called 'wong'. Use one of: meshslice, collective, wang, summa, "
    ):
        price_product(_TPU, _product(Dataflow.OS), algorithm="wong", mesh_shape=(2, 2), options=DEFAULT_OPTIONS)
