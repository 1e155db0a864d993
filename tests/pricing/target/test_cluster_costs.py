"""The seconds of operations on a cluster's figures, against closed forms."""

from dataclasses import replace

import pytest

from jaxquard.cluster import (
    GroupCollective,
    KernelKind,
    KernelSpeed,
    group_spans,
    group_time_s,
    levels_of,
    load_cluster,
    times_of,
)
from jaxquard.errors import ClusterError, HloError
from jaxquard.hlo import CollectiveWork, KernelClass, MatrixProduct, OperationKind, ScheduledOperation
from jaxquard.pricing.target.chips import find_chip
from jaxquard.pricing.target.cluster_costs import ClusterCosts

H100 = load_cluster("h100-8x4")


def make(**more):
    return ScheduledOperation(name="x", computation="main", kind=OperationKind.COMPUTE, opcode="fusion", **more)


def product(dtype="bf16", *, m=4096, k=4096, n=4096, batch=1, output_item_bytes=2):
    return MatrixProduct(batch=batch, m=m, k=k, n=n, dtype=dtype, output_item_bytes=output_item_bytes)


def collective(opcode, size_bytes, groups):
    return CollectiveWork(opcode=opcode, size_bytes=size_bytes, groups=groups)


class TestCompute:
    def test_a_product_takes_what_the_cluster_says(self):
        wanted_s = times_of(H100).product(m=4096, k=4096, n=4096)
        assert ClusterCosts(H100).compute_s(make(products=(product(),))) == pytest.approx(wanted_s)

    @pytest.mark.parametrize(("dtype", "slower"), [("f32", 1 / 0.478), ("f8e4m3fn", 1 / 1.77), ("f16", 1.0)])
    def test_types(self, dtype, slower):
        compute = replace(H100.compute, output_exposed=0.0, launch_s=0.0, tile_bandwidth_bytes_per_s=0.0)
        costs = ClusterCosts(replace(H100, compute=compute))
        times_s = [costs.compute_s(make(products=(product(one),))) for one in (dtype, "bf16")]
        assert times_s[0] == pytest.approx(slower * times_s[1])

    def test_several_products_begin_once(self):
        one, two = (ClusterCosts(H100).compute_s(make(products=(product(),) * count)) for count in (1, 2))
        assert two == pytest.approx(2 * one - H100.compute.launch_s)

    def test_a_pass_takes_its_bytes(self):
        found = ClusterCosts(H100).compute_s(
            make(read_bytes=10**9, written_bytes=10**9, kernel=KernelClass.ELEMENTWISE)
        )
        assert found == pytest.approx(2e9 / (0.9 * 3350e9) + H100.compute.launch_s / 3)

    def test_a_thin_product_takes_its_bytes(self):
        thin = make(products=(product(m=1),), read_bytes=4096 * 4096 * 2)
        assert ClusterCosts(H100).compute_s(thin) > 4096 * 4096 * 2 / 3350e9

    def test_cycles_of_a_tpu(self):
        v5e = load_cluster("v5e-4x4")
        assert ClusterCosts(v5e).compute_s(make(cycles=1_500_000)) == pytest.approx(1e-3, rel=0.01)

    def test_scalars_of_a_tpu_are_quick(self):
        scalar = make(arithmetic=1, kernel=KernelClass.ELEMENTWISE)
        assert ClusterCosts(load_cluster("v5e-4x4")).compute_s(scalar) < 1e-6

    def test_arithmetic_counts_on_a_cpu(self):
        cpu = load_cluster("cpu-8")
        few, many = (ClusterCosts(cpu).compute_s(make(read_bytes=4, arithmetic=count)) for count in (1, 10**9))
        assert many - few == pytest.approx(1e9 / cpu.compute.effective_flops_per_s, rel=0.01)

    def test_measured_kernels_come_first(self):
        speeds = (
            KernelSpeed(kind=KernelKind.ELEMENTWISE, dtype="bf16", bandwidth_bytes_per_s=1e12, launch_s=1e-6),
            KernelSpeed(kind=KernelKind.REDUCTION, dtype="bf16", bandwidth_bytes_per_s=5e11, launch_s=1e-6),
        )
        costs = ClusterCosts(replace(H100, kernels=speeds))
        sizes = {"read_bytes": 10**9, "dtype": "bf16"}
        assert costs.compute_s(make(kernel=KernelClass.ELEMENTWISE, **sizes)) == pytest.approx(1e-3 + 1e-6)
        assert costs.compute_s(make(kernel=KernelClass.REDUCTION, **sizes)) == pytest.approx(2e-3 + 1e-6)
        assert costs.compute_s(make(kernel=KernelClass.TRANSPOSE, **sizes)) == pytest.approx(1e-3 + 1e-6)

    def test_measured_attention_comes_first(self):
        speed = KernelSpeed(kind=KernelKind.ATTENTION, dtype="bf16", flops_per_s=1e14, launch_s=2e-6)
        costs = ClusterCosts(replace(H100, kernels=(speed,)))
        fused = make(kernel=KernelClass.ATTENTION, products=(product(), product()), dtype="bf16", read_bytes=10**6)
        assert costs.compute_s(fused) == pytest.approx(2 * product().flops / 1e14 + 2e-6)
        assert costs.compute_s(fused) > 2 * ClusterCosts(H100).compute_s(fused)


class TestCollectives:
    HOST = (tuple(range(8)), tuple(range(8, 16)), tuple(range(16, 24)), tuple(range(24, 32)))
    ACROSS = tuple(tuple(range(first, 32, 8)) for first in range(8))

    @pytest.mark.parametrize(
        ("opcode", "kind"),
        [
            ("all-gather", GroupCollective.ALL_GATHER),
            ("reduce-scatter", GroupCollective.REDUCE_SCATTER),
            ("all-reduce", GroupCollective.ALL_REDUCE),
            ("all-to-all", GroupCollective.ALL_TO_ALL),
        ],
    )
    @pytest.mark.parametrize(("groups", "axis"), [(HOST, 1), (ACROSS, 0)])
    def test_as_the_cluster_prices_them(self, opcode, kind, groups, axis):
        found = ClusterCosts(H100).collective_s(collective(opcode, 10**8, groups))
        assert found == pytest.approx(group_time_s(kind, group_spans(levels_of(H100), (4, 8), {axis}), 10**8))

    def test_of_groups_the_slowest_counts(self):
        near, far = (collective("all-reduce", 10**8, groups) for groups in (((0, 1),), ((0, 1), (2, 8))))
        assert ClusterCosts(H100).collective_s(far) > ClusterCosts(H100).collective_s(near)

    def test_a_permute_onto_itself_costs_nothing(self):
        assert ClusterCosts(H100).collective_s(collective("collective-permute", 10**8, ((0, 0), (1, 1)))) == 0

    def test_devices_may_be_other_chips(self):
        """The neighbours of a mesh are in two hosts if its devices are."""
        pair = collective("all-reduce", 10**8, ((0, 1),))
        near, far = (ClusterCosts(H100, chips=chips).collective_s(pair) for chips in ((0, 1), (0, 8)))
        assert far > 2 * near

    def test_others_are_refused(self):
        with pytest.raises(HloError, match="but found all-mine"):
            ClusterCosts(H100).collective_s(collective("all-mine", 1, ((0, 1),)))


class TestLinks:
    TORUS = ClusterCosts(load_cluster("v5p-2x4x4"))
    ROW, COLUMN = ((0, 1, 2, 3),), ((0, 4, 8, 12),)

    def test_a_port_carries_one_at_a_time(self):
        costs = ClusterCosts(H100)
        assert costs.links(collective("all-gather", 1, ((0, 1),))) == costs.links(
            collective("all-to-all", 1, ((0, 8),))
        )

    def test_dims_of_a_torus_are_apart(self):
        row, column = (self.TORUS.links(collective("all-gather", 1, groups)) for groups in (self.ROW, self.COLUMN))
        assert row.isdisjoint(column)
        assert row & self.TORUS.links(collective("all-gather", 1, (tuple(range(16)),)))

    def test_permutes_in_both_ways_run_together(self):
        forward = ((0, 1), (1, 2), (2, 3), (3, 0))
        backward = tuple((target, source) for source, target in forward)
        both = [self.TORUS.links(collective("collective-permute", 1, pairs)) for pairs in (forward, backward)]
        assert both[0].isdisjoint(both[1])
        assert all(one <= self.TORUS.links(collective("all-gather", 1, self.ROW)) for one in both)


class TestChips:
    @pytest.mark.parametrize(
        ("name", "word"),
        [("h100-8x4", "H100"), ("a100-pcie-8", "A100"), ("v100-nvlink", "V100"), ("calibrated h200-8", "H200")],
    )
    def test_gpus(self, name, word):
        assert word in find_chip(name).description

    def test_others(self):
        assert find_chip("tpu-v4-4x4x4").generation == "v4"
        assert find_chip("cpu-8") is None

    def test_unknown(self):
        with pytest.raises(ClusterError, match=r"'mine', but no compiler is known for it.*h100, h200"):
            find_chip("mine")
