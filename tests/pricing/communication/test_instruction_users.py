from jaxquard.hlo import parse_module
from jaxquard.pricing.communication.read_trace import instruction_users

TEXT = """HloModule m

%body (state: (s32[], f32[8])) -> (s32[], f32[8]) {
  %state = (s32[], f32[8]{0}) parameter(0)
  %count = s32[] get-tuple-element(%state), index=0
  %value = f32[8]{0} get-tuple-element(%state), index=1
  %next = s32[] fusion(%count), kind=kLoop, calls=%fused
  %product = f32[8]{0} dot(%value, %value)
  %sine = f32[8]{0} sine(%product)
  ROOT %both = (s32[], f32[8]{0}) tuple(%next, %sine)
}

%fused (c: s32[]) -> s32[] {
  %c = s32[] parameter(0)
  ROOT %more = s32[] add(%c, %c)
}

%condition (state.1: (s32[], f32[8])) -> pred[] {
  %state.1 = (s32[], f32[8]{0}) parameter(0)
  %count.1 = s32[] get-tuple-element(%state.1), index=0
  ROOT %less = pred[] compare(%count.1, %count.1), direction=LT
}

ENTRY %main (x: f32[8]) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %zero = s32[] constant(0)
  %start = (s32[], f32[8]{0}) tuple(%zero, %x)
  %loop = (s32[], f32[8]{0}) while(%start), condition=%condition, body=%body
  %out = f32[8]{0} get-tuple-element(%loop), index=1
  ROOT %last = f32[8]{0} cosine(%out)
}
"""


def test_users_are_found_through_tuples():
    users = instruction_users(parse_module(TEXT))
    assert users["product"] == {"sine"}
    assert {"loop"} <= users["x"]
    assert "last" in users["loop"]
    assert "last" not in users


def test_what_ends_a_body_is_waited_for_by_the_condition_and_by_who_follows():
    users = instruction_users(parse_module(TEXT))
    assert {"less", "last"} <= users["sine"]
    assert {"less", "last"} <= users["next"]
    assert "less" not in users["product"]
