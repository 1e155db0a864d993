"""Counting hidden transfers, in programs that the TPU's compiler made and in small ones written by hand."""

import pytest

from jaxquard.errors import GemmError
from jaxquard.gemm import AlgorithmOptions
from jaxquard.gemm.algorithms.registry import ALGORITHMS
from jaxquard.gemm.overlap.count_hidden import Overlap, count_hidden
from jaxquard.gemm.overlap.hideable import HIDEABLE, Rings, num_hideable
from jaxquard.gemm.overlap.transfers import scheduled_collectives
from jaxquard.hlo import parse_module
from tests.gemm.compiled_texts import PROGRAMS, read

PRODUCT = """\
%fused (x: f32[8,8]) -> f32[8,8] {
  %x = f32[8,8] parameter(0)
  ROOT %dot.0 = f32[8,8] dot(%x, %x)
}
"""


def program(*lines, is_scheduled=True):
    body = "\n".join(f"  {line}" for line in lines)
    header = "HloModule m, is_scheduled=true" if is_scheduled else "HloModule m"
    return (
        f"{header}\n\n{PRODUCT}\nENTRY %main (a: f32[8,8]) -> f32[8,8] {{\n  %a = f32[8,8] parameter(0)\n{body}\n}}\n"
    )


def permute(name, operand, op_name="ppermute"):
    metadata = f'metadata={{op_name="jit(f)/{op_name}"}}'
    return (
        f"%start{name} = (f32[8,8], f32[8,8]) collective-permute-start(%{operand}), channel_id=1, {metadata}",
        f"%done{name} = f32[8,8] collective-permute-done(%start{name})",
    )


MULTIPLY = "%product = f32[8,8] fusion(%a), kind=kOutput, calls=%fused"
COPY = "%copy = f32[8,8] copy(%a)"


def test_hidden_is_a_product_between_start_and_done():
    start, done = permute(1, "a")
    assert count_hidden(program(start, MULTIPLY, done), algorithm="wang") == 1
    assert count_hidden(program(MULTIPLY, start, COPY, done), algorithm="wang") == 0
    assert count_hidden(program(start, done, MULTIPLY), algorithm="wang") == 0


def test_a_synchronous_collective_is_not_hidden():
    text = program("%gather = f32[16,8] all-gather(%a), dimensions={0}", MULTIPLY)
    (transfer,) = scheduled_collectives(parse_module(text))
    assert (transfer.kind, transfer.is_hidden) == ("all-gather", False)


def test_a_generic_start_and_done():
    text = program(
        "%start = ((f32[8,8]), f32[16,8], u32[]) async-start(%a), calls=%gathering",
        MULTIPLY,
        "%done = f32[16,8] async-done(%start)",
    ).replace(
        "ENTRY",
        "%gathering (y: f32[8,8]) -> f32[16,8] {\n  %y = f32[8,8] parameter(0)\n"
        "  ROOT %g = f32[16,8] all-gather(%y), dimensions={0}\n}\n\nENTRY",
    )
    assert count_hidden(text, algorithm="meshslice") == 1


def test_a_copy_does_not_end_a_transfer():
    """An asynchronous copy in between has a start and a done of its own."""
    start, done = permute(1, "a")
    copying = (
        "%copy-start = ((f32[8,8]), f32[8,8], u32[]) async-start(%start1), calls=%copying",
        "%copy-done = f32[8,8] async-done(%copy-start)",
    )
    text = program(start, *copying, MULTIPLY, done).replace(
        "ENTRY", "%copying (y: f32[8,8]) -> f32[8,8] {\n  ROOT %y = f32[8,8] parameter(0)\n}\n\nENTRY"
    )
    assert count_hidden(text, algorithm="wang") == 1


def test_a_transfer_without_an_end():
    with pytest.raises(ValueError, match="the transfer start1 has no end in the program"):
        count_hidden(program(permute(1, "a")[0], MULTIPLY), algorithm="wang")


def test_a_transfer_in_steps_hides_if_all_steps_do():
    first, second = permute(1, "a", "transfer0/ppermute"), permute(2, "done1", "transfer0/ppermute")
    again = MULTIPLY.replace("%product", "%product2")
    assert count_hidden(program(first[0], MULTIPLY, first[1], *second), algorithm="meshslice") == 0
    hidden = program(first[0], MULTIPLY, first[1], second[0], again, second[1])
    assert count_hidden(hidden, algorithm="meshslice") == 1


def test_permutes_of_the_compiler_do_not_count_for_meshslice():
    start, done = permute(1, "a", "reduce_scatter")
    assert count_hidden(program(start, MULTIPLY, done), algorithm="meshslice") == 0


def test_an_unscheduled_program_says_nothing():
    with pytest.raises(ValueError, match="not scheduled"):
        count_hidden(program(MULTIPLY, is_scheduled=False), algorithm="wang")


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("meshslice-os-v5e", 2),
        ("meshslice-ls-v5e", 3),
        ("meshslice-loop-ls-v5e", 23),
        ("meshslice-plain-os-v5e", 1),
        ("meshslice-plain-rs-v5e", 1),
        ("wang-os-v4", 1),
    ],
)
def test_compiled_programs(name, hidden):
    assert count_hidden(read(name), algorithm=PROGRAMS[name][1]) == hidden


def test_pairs_of_a_compiled_program():
    """Two gathers wait, two run beside a half of the first product each."""
    transfers = scheduled_collectives(parse_module(read("meshslice-os-v5e")))
    assert [(transfer.kind, transfer.is_hidden) for transfer in transfers] == [
        ("all-gather", False),
        ("all-gather", False),
        ("all-gather", True),
        ("all-gather", True),
    ]


LOOP = """\
%condition (c: (s32[], f32[8,8])) -> pred[] {
  %c = (s32[], f32[8,8]) parameter(0)
  %counter = s32[] get-tuple-element(%c), index=0
  %limit = s32[] constant(5)
  ROOT %lt = pred[] compare(%counter, %limit), direction=LT
}

%body (b: (s32[], f32[8,8])) -> (s32[], f32[8,8]) {
  %b = (s32[], f32[8,8]) parameter(0)
  %count = s32[] get-tuple-element(%b), index=0
  %x.1 = f32[8,8] get-tuple-element(%b), index=1
  %start.in = (f32[8,8], f32[8,8]) collective-permute-start(%x.1), metadata={op_name="jit(f)/while/ppermute"}
  %inner = f32[8,8] fusion(%x.1), kind=kOutput, calls=%fused
  %done.in = f32[8,8] collective-permute-done(%start.in)
  ROOT %both = (s32[], f32[8,8]) tuple(%count, %done.in)
}
"""
RUN_LOOP = "%loop = (s32[], f32[8,8]) while(%a), condition=%condition, body=%body"


def test_transfers_of_a_loop_count_once_an_iteration():
    start, done = permute(1, "a")
    text = program(start, MULTIPLY, done, RUN_LOOP).replace("ENTRY", f"{LOOP}\nENTRY")
    assert [(transfer.name, transfer.times) for transfer in scheduled_collectives(parse_module(text))] == [
        ("start1", 1),
        ("start.in", 5),
    ]
    assert count_hidden(text, algorithm="wang") == 6
    waiting = text.replace("  %inner = f32[8,8] fusion(%x.1), kind=kOutput, calls=%fused\n", "")
    assert count_hidden(waiting, algorithm="wang") == 1


def test_a_loop_with_products_hides_what_runs_beside_it():
    start, done = permute(1, "a")
    text = program(start, RUN_LOOP, done).replace("ENTRY", f"{LOOP}\nENTRY")
    assert count_hidden(text, algorithm="wang") == 6


def test_a_loop_of_unknown_length():
    text = program(RUN_LOOP).replace("ENTRY", f"{LOOP.replace('direction=LT', 'direction=NE')}\nENTRY")
    with pytest.raises(ValueError, match="the loop loop has no number of iterations"):
        count_hidden(text, algorithm="wang")


RINGS = Rings(num_rows=8, num_columns=4, num_chips_of_ring=8)
SUMS = Rings(num_rows=8, num_columns=4, num_chips_of_ring=8, num_chips_of_sums=4)


@pytest.mark.parametrize(
    ("algorithm", "how", "rings", "expected"),
    [
        ("meshslice", {"slices": 4}, RINGS, 6),
        ("meshslice", {"slices": 1}, RINGS, 0),
        ("meshslice", {"slices": 4}, Rings(num_rows=8, num_columns=1, num_chips_of_ring=8), 3),
        ("meshslice", {"slices": 4, "split_for_overlap": True}, RINGS, 6),
        ("meshslice", {"slices": 4, "split_for_overlap": True}, SUMS, 7),
        ("meshslice", {"slices": 1, "split_for_overlap": True}, SUMS, 0),
        ("meshslice", {"slices": 4}, SUMS, 6),
        ("collective", {}, RINGS, 0),
        ("wang", {}, RINGS, 7),
        ("wang", {"slices": 2}, RINGS, 4),
        ("wang", {"slices": 2, "bidirectional": True}, RINGS, 8),
        ("cannon", {}, Rings(num_rows=4, num_columns=4, num_chips_of_ring=4), 6),
        ("summa", {}, RINGS, 7 * (7 + 3)),
        ("summa", {"slices": 2}, RINGS, 4 * (7 + 3)),
        ("1d_tp", {}, Rings(num_rows=1, num_columns=32, num_chips_of_ring=32), 31),
    ],
)
def test_hideable(algorithm, how, rings, expected):
    assert num_hideable(algorithm, AlgorithmOptions(**how), rings) == expected


def test_hideable_knows_every_algorithm():
    assert list(HIDEABLE) == list(ALGORITHMS)
    with pytest.raises(GemmError, match="no GeMM algorithm is called 'canon'"):
        num_hideable("canon", AlgorithmOptions(), RINGS)


def test_overlap_prints():
    assert str(Overlap(hideable=6, hidden=5)) == "5 of 6"
