"""The work of operations: golden lists of real compilers' texts, and lines made by hand."""

from pathlib import Path

import pytest

from jaxquard.errors import HloError
from jaxquard.hlo import KernelClass, OperationKind, list_schedule, parse_module, schedule_text
from tests.golden import check_golden
from tests.hlo.compiled_texts import CLUSTERS, read_text

GOLDEN = Path(__file__).parent / "golden"
# Of a device: 512 rows by 2, hidden 2048 by 4; forward two products, backward four, of which one has no gradient to x.
_LAYER_FLOPS = 2 * 256 * 1024 * 512


def listed(backend, name):
    return list_schedule(parse_module(read_text(backend, name)))


def everything(operations, times=1):
    for operation in operations:
        yield operation, times
        for body in operation.bodies:
            yield from everything(body, times * operation.times)


@pytest.mark.parametrize("name", ["layer", "scan"])
@pytest.mark.parametrize("backend", CLUSTERS)
def test_golden(backend, name, request):
    text = schedule_text(listed(backend, name))
    check_golden(text, GOLDEN / f"{backend}_{name}.txt", update=request.config.getoption("--update-golden"))


@pytest.mark.parametrize("backend", CLUSTERS)
def test_flops_are_those_of_the_program(backend):
    """Every compiler has the same products, as dots or as convolutions: two forward, three backward."""
    assert sum(operation.flops for operation in listed(backend, "layer")) == 5 * _LAYER_FLOPS


@pytest.mark.parametrize("backend", CLUSTERS)
def test_loops_count_by_their_iterations(backend):
    """Four layers of whole products on 64 rows: two forward, three or four backward (also to the first input)."""
    flops = sum(times * operation.flops for operation, times in everything(listed(backend, "scan")))
    assert flops in (4 * n * 2 * 64 * 1024 * 2048 for n in (5, 6))


@pytest.mark.parametrize("backend", CLUSTERS)
def test_groups_are_rows_and_columns_of_the_mesh(backend):
    found = {
        operation.collective.groups for operation, _ in everything(listed(backend, "layer")) if operation.collective
    }
    assert {frozenset(map(frozenset, groups)) for groups in found} <= {
        frozenset({frozenset({0, 1, 2, 3}), frozenset({4, 5, 6, 7})}),
        frozenset(frozenset({column, column + 4}) for column in range(4)),
        frozenset({frozenset(range(8))}),
    }
    assert found


@pytest.mark.parametrize("name", ["layer", "scan"])
@pytest.mark.parametrize("backend", CLUSTERS)
def test_every_done_has_its_start_before_it(backend, name):
    def check(operations):
        started = set()
        for operation in operations:
            if operation.kind is OperationKind.START:
                started.add(operation.name)
            elif operation.kind is OperationKind.DONE:
                assert operation.start in started
            for body in operation.bodies:
                check(body)

    check(listed(backend, name))


def test_only_the_tpu_gives_cycles():
    cycles = {backend: [one.cycles for one in listed(backend, "layer") if one.products] for backend in CLUSTERS}
    assert all(cycles["v5e"])
    assert not any(cycles["cpu"] + cycles["h100"])


HEADER = "HloModule m, is_scheduled=true, num_partitions=4\n\n"
ADD = (
    "%add (a: f32[], b: f32[]) -> f32[] {\n  %a = f32[] parameter(0)\n  %b = f32[] parameter(1)\n"
    "  ROOT %c = f32[] add(%a, %b)\n}\n\n"
)


def entry(lines, *, before=""):
    body = "".join(f"  {line}\n" for line in lines)
    return list_schedule(parse_module(f"{HEADER}{before}ENTRY %main () -> f32[] {{\n{body}}}\n"))


X = "%x = f32[64,32]{1,0} parameter(0)"
W = "%w = f32[32,16]{1,0} parameter(1)"


class TestProducts:
    def test_dot(self):
        line = "%d = f32[64,16]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
        (found,) = entry([X, W, line])
        (product,) = found.products
        assert (product.batch, product.m, product.k, product.n, product.dtype) == (1, 64, 32, 16, "f32")
        assert (found.flops, found.read_bytes, found.written_bytes) == (2 * 64 * 32 * 16, 4 * (2048 + 512), 4 * 1024)
        assert found.kernel is KernelClass.PRODUCT

    def test_dot_with_batches(self):
        left, right = "%l = bf16[2,3,8,5]{3,2,1,0} parameter(0)", "%r = bf16[2,3,7,5]{3,2,1,0} parameter(1)"
        line = (
            "%d = bf16[2,3,8,7]{3,2,1,0} dot(%l, %r), lhs_batch_dims={0,1}, lhs_contracting_dims={3}, "
            "rhs_batch_dims={0,1}, rhs_contracting_dims={3}"
        )
        (product,) = entry([left, right, line])[0].products
        assert (product.batch, product.m, product.k, product.n) == (6, 8, 5, 7)

    @pytest.mark.parametrize("target", ["__cublas$gemm", "__cublas$lt$matmul", "__cublas$lt$matmul$f8"])
    def test_cublas(self, target):
        line = (
            f'%d = (f32[64,16]{{1,0}}, s8[1024]{{0}}) custom-call(%x, %w), custom_call_target="{target}", '
            'backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],'
            '"rhs_contracting_dimensions":["0"],"lhs_batch_dimensions":[],"rhs_batch_dimensions":[]}}}'
        )
        assert entry([X, W, line])[0].flops == 2 * 64 * 32 * 16

    @pytest.mark.parametrize(
        ("target", "mask", "num_products"),
        [
            ("__cudnn$fmhaSoftmax", "NO_MASK", 2),
            ("__cudnn$fmhaSoftmax", "CAUSAL", 1),
            ("__cudnn$fmhaSoftmaxBackward", "NO_MASK", 5),
        ],
    )
    def test_attention(self, target, mask, num_products):
        query = "%q = bf16[2,128,4,64]{3,2,1,0} parameter(0)"
        line = (
            f'%a = (bf16[2,128,4,64]{{3,2,1,0}}, u8[0]{{0}}) custom-call(%q, %q, %q), custom_call_target="{target}", '
            'backend_config={"cudnn_fmha_backend_config":{"intermediate_tensor_shape":{"dimensions":["2","4","128",'
            f'"128"]}},"mask_type":"{mask}"}}}}'
        )
        (found,) = entry([query, line])
        assert found.flops == num_products * 2 * (2 * 4) * 128 * 64 * 128
        assert found.kernel is KernelClass.ATTENTION

    def test_convolution(self):
        image, kernel = "%i = f32[8,16,16,3]{3,2,1,0} parameter(0)", "%k = f32[3,3,3,32]{3,2,1,0} parameter(1)"
        line = "%c = f32[8,14,14,32]{3,2,1,0} convolution(%i, %k), window={size=3x3}, dim_labels=b01f_01io->b01f"
        assert entry([image, kernel, line])[0].flops == 2 * 8 * 14 * 14 * 32 * 3 * 3 * 3

    def test_padding_of_a_convolution_is_no_work(self):
        image, kernel = "%i = f32[1,4,1]{2,1,0} parameter(0)", "%k = f32[3,1,1]{2,1,0} parameter(1)"
        line = "%c = f32[1,4,1]{2,1,0} convolution(%i, %k), window={size=3 pad=1_1}, dim_labels=b0f_0io->b0f"
        assert entry([image, kernel, line])[0].flops == 2 * (4 * 3 - 2)

    def test_a_batch_as_a_dim_of_the_window(self):
        """As a TPU's compiler writes a batched product: each place of the window meets one batch."""
        left, right = "%l = f32[8,64,32]{2,1,0} parameter(0)", "%r = f32[8,32,16]{2,1,0} parameter(1)"
        line = (
            "%c = f32[8,64,16]{2,1,0} convolution(%l, %r), window={size=8 stride=7 pad=0_0 lhs_dilate=8}, "
            "dim_labels=0bf_0io->0bf"
        )
        assert entry([left, right, line])[0].flops == 8 * 2 * 64 * 32 * 16

    @pytest.mark.parametrize(
        "line",
        [
            "%d = f32[64,16]{1,0} dot(%x, %w), lhs_contracting_dims={0}, rhs_contracting_dims={0}",
            '%d = f32[64,16]{1,0} custom-call(%x, %w), custom_call_target="__cublas$gemm"',
            "%d = f32[64,16]{1,0} convolution(%x, %w), window={}",
        ],
    )
    def test_what_cannot_be_read_is_quoted(self, line):
        with pytest.raises(HloError, match=r"expected a matrix product with its dims, but found: d = "):
            entry([X, W, line])


class TestCustomCalls:
    def test_unknown(self):
        with pytest.raises(HloError, match=r"found 'mine', whose author gives no cost_estimate, in: k = custom-call"):
            entry([X, '%k = f32[64,32]{1,0} custom-call(%x), custom_call_target="mine"'])

    def test_with_an_estimate(self):
        line = (
            '%k = f32[64,32]{1,0} custom-call(%x), custom_call_target="tpu_custom_call", '
            'backend_config={"custom_call_config":{"cost_estimate":{"flops":"2000000"}}}'
        )
        assert entry([X, line])[0].flops == pytest.approx(2e6)

    def test_passes_and_names(self):
        lines = [
            X,
            '%t = f32[64,8]{1,0} custom-call(%x), custom_call_target="TopK"',
            '%n = f32[64,8]{1,0} custom-call(%t), custom_call_target="Sharding"',
        ]
        (found,) = entry(lines)
        assert (found.name, found.read_bytes, found.written_bytes) == ("t", 8192, 2048)


class TestTraffic:
    SLICED = (
        "%fused (p0: f32[12,64], p1: s32[]) -> f32[1,64] {\n  %p0 = f32[12,64]{1,0} parameter(0)\n"
        "  %p1 = s32[] parameter(1)\n  %zero = s32[] constant(0)\n"
        "  ROOT %s = f32[1,64]{1,0} dynamic-slice(%p0, %p1, %zero), dynamic_slice_sizes={1,64}\n}\n\n"
    )
    UPDATED = (
        "%fused (p0: f32[12,64], p1: f32[1,64], p2: s32[]) -> f32[12,64] {\n  %p0 = f32[12,64]{1,0} parameter(0)\n"
        "  %p1 = f32[1,64]{1,0} parameter(1)\n  %p2 = s32[] parameter(2)\n  %zero = s32[] constant(0)\n"
        "  ROOT %u = f32[12,64]{1,0} dynamic-update-slice(%p0, %p1, %p2, %zero)\n}\n\n"
    )

    def test_a_fusion_reads_the_slice_that_it_takes(self):
        lines = [
            "%stack = f32[12,64]{1,0} parameter(0)",
            "%i = s32[] parameter(1)",
            "%f = f32[1,64]{1,0} fusion(%stack, %i), kind=kLoop, calls=%fused",
        ]
        (found,) = entry(lines, before=self.SLICED)
        assert (found.read_bytes, found.written_bytes) == (256 + 4, 256)

    def test_a_fusion_writes_the_update_that_it_makes(self):
        lines = [
            "%stack = f32[12,64]{1,0} parameter(0)",
            "%row = f32[1,64]{1,0} parameter(1)",
            "%i = s32[] parameter(2)",
            "%f = f32[12,64]{1,0} fusion(%stack, %row, %i), kind=kLoop, calls=%fused",
        ]
        (found,) = entry(lines, before=self.UPDATED)
        assert (found.read_bytes, found.written_bytes) == (256 + 4, 256)


class TestLoops:
    BODY = (
        "%body (t: (s32[], f32[64])) -> (s32[], f32[64]) {{\n  %t = (s32[], f32[64]{{0}}) parameter(0)\n"
        "  %i = s32[] get-tuple-element(%t), index=0\n  %v = f32[64]{{0}} get-tuple-element(%t), index=1\n"
        "  %step = s32[] constant({step})\n  %next = s32[] add(%i, %step)\n  %w = f32[64]{{0}} exponential(%v)\n"
        "  ROOT %r = (s32[], f32[64]{{0}}) tuple(%next, %w)\n}}\n\n"
        "%cond (u: (s32[], f32[64])) -> pred[] {{\n  %u = (s32[], f32[64]{{0}}) parameter(0)\n"
        "  %j = s32[] get-tuple-element(%u), index=0\n  %limit = s32[] constant({limit})\n"
        "  ROOT %less = pred[] compare(%j, %limit), direction={direction}\n}}\n\n"
    )

    def loop(self, *, attributes="", limit=7, step=1, first=0, direction="LT"):
        lines = [
            f"%first = s32[] constant({first})",
            "%v = f32[64]{0} parameter(0)",
            "%t0 = (s32[], f32[64]{0}) tuple(%first, %v)",
            f"%loop = (s32[], f32[64]{{0}}) while(%t0), condition=%cond, body=%body{attributes}",
        ]
        return entry(lines, before=self.BODY.format(limit=limit, step=step, direction=direction))[0]

    @pytest.mark.parametrize(
        ("settings", "times"),
        [
            ({}, 7),
            ({"step": 2}, 4),
            ({"first": 3}, 4),
            ({"limit": 0}, 0),
            ({"direction": "GT", "attributes": ', backend_config={"known_trip_count":{"n":"12"}}'}, 12),
        ],
    )
    def test_iterations(self, settings, times):
        found = self.loop(**settings)
        assert (found.kind, found.times) == (OperationKind.LOOP, times)
        assert [one.opcode for one in found.bodies[0]] == ["add", "exponential"]

    def test_unknown(self):
        with pytest.raises(HloError, match=r"expected a loop with a known number of iterations.*found: loop = while"):
            self.loop(direction="GT")


class TestTransfers:
    def test_bytes_and_groups_of_a_pair(self):
        lines = [
            X,
            "%s = (f32[64,32]{1,0}, f32[256,32]{1,0}) all-gather-start(%x), channel_id=1, replica_groups=[1,4]<=[4], "
            "dimensions={0}, use_global_device_ids=true",
            "%e = f32[64,32]{1,0} exponential(%x)",
            "%d = f32[256,32]{1,0} all-gather-done(%s)",
        ]
        start, _, done = entry(lines)
        assert (start.collective.opcode, start.collective.size_bytes) == ("all-gather", 4 * 256 * 32)
        assert start.collective.groups == ((0, 1, 2, 3),)
        assert (done.kind, done.start) == (OperationKind.DONE, "s")

    def test_a_permute_with_flags(self):
        lines = [
            X,
            "%s = (f32[64,32]{1,0}, f32[64,32]{1,0}, u32[], u32[]) collective-permute-start(%x), channel_id=1, "
            "source_target_pairs={{0,1},{1,0}}",
            "%d = f32[64,32]{1,0} collective-permute-done(%s)",
        ]
        assert entry(lines)[0].collective.size_bytes == 4 * 64 * 32

    def test_wrapped(self):
        wrapped = (
            "%wrapped (p: f32[64,32]) -> f32[16,32] {\n  %p = f32[64,32]{1,0} parameter(0)\n"
            "  ROOT %r = f32[16,32]{1,0} reduce-scatter(%p), channel_id=1, replica_groups={{0,1,2,3}}, "
            "use_global_device_ids=true, dimensions={0}, to_apply=%add\n}\n\n"
        )
        lines = [
            X,
            "%s = ((f32[64,32]{1,0}), f32[16,32]{1,0}) async-start(%x), calls=%wrapped",
            "%u = ((f32[64,32]{1,0}), f32[16,32]{1,0}) async-update(%s)",
            "%d = f32[16,32]{1,0} async-done(%u)",
        ]
        start, done = entry(lines, before=ADD + wrapped)
        assert (start.collective.opcode, start.collective.size_bytes, done.start) == ("reduce-scatter", 8192, "s")

    def test_a_group_of_collectives_counts_each(self):
        wrapped = (
            "%wrapped (p: f32[64,32]) -> (f32[256,32], f32[64,32]) {\n  %p = f32[64,32]{1,0} parameter(0)\n"
            "  %g = f32[256,32]{1,0} all-gather(%p), channel_id=1, replica_groups={{0,1,2,3}}, "
            "use_global_device_ids=true, dimensions={0}\n"
            "  %r = f32[64,32]{1,0} all-reduce(%p), channel_id=2, replica_groups={{0,1,2,3}}, "
            "use_global_device_ids=true, to_apply=%add\n"
            "  ROOT %t = (f32[256,32]{1,0}, f32[64,32]{1,0}) tuple(%g, %r)\n}\n\n"
        )
        lines = [
            X,
            "%s = ((f32[64,32]{1,0}), (f32[256,32]{1,0}, f32[64,32]{1,0})) async-start(%x), calls=%wrapped",
            "%d = (f32[256,32]{1,0}, f32[64,32]{1,0}) async-done(%s)",
        ]
        start, _ = entry(lines, before=ADD + wrapped)
        assert [one.collective.size_bytes for one in start.bodies[0]] == [4 * 256 * 32, 4 * 64 * 32]

    def test_a_copy_between_memories(self):
        lines = [
            X,
            "%s = (f32[64,32]{1,0:S(1)}, f32[64,32]{1,0}, u32[]{:S(2)}) copy-start(%x)",
            "%d = f32[64,32]{1,0:S(1)} copy-done(%s)",
        ]
        start, _ = entry(lines)
        assert (start.kind, start.collective, start.read_bytes) == (OperationKind.START, None, 8192)

    def test_a_gpu_that_copies_to_the_host_is_no_tpu(self):
        lines = [
            X,
            "%s = (f32[64,32]{1,0:S(5)}, f32[64,32]{1,0}, u32[]) copy-start(%x)",
            "%n = f32[64,32]{1,0:S(1)} negate(%x)",
            "%d = f32[64,32]{1,0:S(5)} copy-done(%s)",
        ]
        _, negated, _ = entry(lines)
        assert (negated.read_bytes, negated.written_bytes) == (8192, 8192)

    def test_a_sum_of_which_a_slice_is_kept(self):
        """A TPU fuses the slice to the sum: it is a reduce-scatter."""
        fused = (
            "%fused (p: f32[64,32]) -> f32[16,32] {\n  %p = f32[64,32]{1,0} parameter(0)\n"
            "  %r = f32[64,32]{1,0} all-reduce(%p), channel_id=1, replica_groups={{0,1,2,3}}, "
            "use_global_device_ids=true, to_apply=%add\n  %i = s32[] constant(0)\n"
            "  ROOT %k = f32[16,32]{1,0} dynamic-slice(%r, %i, %i), dynamic_slice_sizes={16,32}\n}\n\n"
        )
        lines = [X, "%f = f32[16,32]{1,0} fusion(%x), kind=kCustom, calls=%fused"]
        (found,) = entry(lines, before=ADD + fused)
        assert (found.kind, found.collective.opcode) == (OperationKind.COLLECTIVE, "reduce-scatter")

    def test_a_done_without_a_start_is_quoted(self):
        with pytest.raises(HloError, match=r"expected a start for the end of a transfer.*d = all-gather-done"):
            entry([X, "%d = f32[256,32]{1,0} all-gather-done(%x)"])


def test_a_module_must_be_scheduled():
    with pytest.raises(HloError, match="module m is not scheduled"):
        list_schedule(parse_module("HloModule m\n\nENTRY %main () -> f32[] {\n}\n"))


@pytest.mark.parametrize(
    ("before", "after", "kernel"),
    [
        ("f32[8,64]{1,0}", "f32[8,64]{0,1}", KernelClass.TRANSPOSE),
        ("f32[8,64]{1,0}", "f32[8,64]{1,0}", KernelClass.ELEMENTWISE),
        ("f32[1,64]{1,0}", "f32[1,64]{0,1}", KernelClass.ELEMENTWISE),
    ],
)
def test_a_copy_to_another_layout_is_a_transpose(before, after, kernel):
    """A dim of size 1 lies anywhere."""
    text = (
        "HloModule m, is_scheduled=true\n\n"
        f"ENTRY %main (x: f32[8,64]) -> f32[8,64] {{\n  %x = {before} parameter(0)\n  ROOT %y = {after} copy(%x)\n}}\n"
    )
    (copy,) = [operation for operation in list_schedule(parse_module(text)) if operation.name == "y"]
    assert copy.kernel is kernel
