"""Reading HLO text: shapes, operands, called computations and attributes, as compilers print them."""

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxquard.errors import HloError
from jaxquard.hlo import ArrayShape, list_schedule, parse_module
from jaxquard.hlo.parse_module import parse_operation
from tests.hlo.compiled_texts import CLUSTERS, read_text

TEXT = """\
HloModule jit_f, is_scheduled=true, entry_computation_layout={(bf16[8,4]{1,0})->f32[8,4]{1,0}}

FileNames
1 "train (1).py"

%fused (p.0: bf16[8,4]) -> f32[8,4] {
  %p.0 = bf16[8,4]{1,0:T(8,128)(2,1)S(1)} parameter(0)
  ROOT %dot.1 = f32[8,4]{1,0:T(8,128)} convolution(%p.0, %p.0), dim_labels=bf_io->bf
}

%outer (p.1: bf16[8,4]) -> f32[8,4] {
  %p.1 = bf16[8,4]{1,0} parameter(0)
  ROOT %inner = f32[8,4]{1,0} fusion(%p.1), kind=kOutput, calls=%fused
}

ENTRY %main (a: bf16[8,4]) -> f32[8,4] {
  %a = bf16[8,4]{1,0:T(8,128)(2,1)} parameter(0), metadata={op_name="args[(0)]"}
  %start = (bf16[8,4]{1,0:T(8,128)S(1)}, (s32[2]{0:S(4)}, /*index=2*/u32[])) custom-call(%a), \
custom_call_target="Start(", frontend_attributes={chain_id="0"}
  ROOT %call = f32[8,4]{1,0} call(%a), to_apply=%outer, backend_config={"estimated_cycles":"74496"}
}
"""


@pytest.fixture(scope="module")
def module():
    return parse_module(TEXT)


def test_module(module):
    assert (module.name, module.entry, module.is_scheduled) == ("jit_f", "main", True)
    assert list(module.computations) == ["fused", "outer", "main"]
    assert [operation.opcode for operation in module.main.operations] == ["parameter", "custom-call", "call"]


def test_shapes_of_nested_tuples_with_layouts(module):
    start = module.main.operation("start")
    assert start.results == (
        ArrayShape(dtype="bf16", sizes=(8, 4)),
        ArrayShape(dtype="s32", sizes=(2,)),
        ArrayShape(dtype="u32", sizes=()),
    )
    assert start.result_bytes == 8 * 4 * 2 + 2 * 4 + 4


@pytest.mark.parametrize(
    ("dtype", "sizes", "size_bytes"),
    [("f32", (3, 5), 60), ("pred", (7,), 7), ("s4", (3,), 2), ("f8e4m3fn", (6,), 6), ("c64", (), 8), ("token", (), 0)],
)
def test_bytes(dtype, sizes, size_bytes):
    assert ArrayShape(dtype=dtype, sizes=sizes).size_bytes == size_bytes


def test_operands_calls_and_attributes(module):
    start, call = module.main.operations[1:]
    assert (start.operands, start.calls) == (("a",), ())
    assert start.attribute("custom_call_target") == '"Start("'
    assert start.attribute("chain_id") == '"0"'
    assert start.attribute("channel_id") is None
    assert (call.calls, call.is_root) == (("outer",), True)


def test_inside_reaches_every_depth(module):
    assert [inner.opcode for inner in module.inside(module.main.operation("call"))] == [
        "call",
        "parameter",
        "fusion",
        "parameter",
        "convolution",
    ]


@pytest.mark.parametrize(
    ("attributes", "calls"),
    [
        ("condition=%cond.1, body=%body.2", ("cond.1", "body.2")),
        ("branch_computations={%a, %b}", ("a", "b")),
        ("dimensions={0}, to_apply=%add", ("add",)),
    ],
)
def test_called_computations(attributes, calls):
    assert parse_operation(f"  %x = f32[] while(%y), {attributes}").calls == calls


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nothing", "begins with `HloModule`"),
        ("HloModule m\n\n%f (a: f32[]) -> f32[] {\n}\n", "ENTRY computation is missing"),
        ("HloModule m\n\nENTRY %f (a: f32[]) -> f32[] {\n", "is cut off"),
        ("HloModule m\n\nENTRY %f (a: f32[]) -> f32[] {\n  what is this\n}\n", "found: what is this"),
        ("HloModule m\n\nENTRY %f (a: f32[]) -> f32[] {\n  %x = f32[] 7\n}\n", "expected an opcode"),
        ("HloModule m\n\nENTRY %f (a: f32[]) -> f32[] {\n  %x = f32[] add(%y\n}\n", "not closed"),
    ],
)
def test_what_cannot_be_read(text, message):
    with pytest.raises(ValueError, match=message):
        parse_module(text)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("convolution(%p.0, %p.0)", "convolution(%p.0, %p.9)", r"expected p\.9 in the text, .* nowhere: dot\.1 = conv"),
        ("calls=%fused", "calls=%fussed", r"expected fussed in the text, .* nowhere: inner = fusion\(%p\.1\)"),
        ("convolution(", "convolation(", r"found convolation, whose work is unknown: dot\.1 = convolation\(%p\.0"),
        ("%p.1 = bf16[8,4]", "%p.1 = bf16[8,<4=2]", r"expected sizes as numbers .*: %p\.1 = bf16\[8,<4=2\]"),
    ],
)
def test_text_that_cannot_be_read_is_quoted(old, new, message):
    assert TEXT.count(old) == 1
    with pytest.raises(HloError, match=message):
        parse_module(TEXT.replace(old, new))


@settings(max_examples=60)
@given(st.data())
def test_damaged_text_is_read_or_refused(data):
    """Never another error: a compiler of another version may print what this one does not."""
    lines = read_text(data.draw(st.sampled_from(sorted(CLUSTERS))), "layer").splitlines()
    place = data.draw(st.integers(0, len(lines) - 1))
    column = data.draw(st.integers(0, max(0, min(len(lines[place]), 120) - 1)))
    character = data.draw(st.sampled_from(["", ")", "(", "%x", "]", "9", '"']))
    lines[place] = lines[place][:column] + character + lines[place][column + 1 :]
    with contextlib.suppress(HloError):
        list_schedule(parse_module("\n".join(lines)))
