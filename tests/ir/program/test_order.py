import pytest

from jaxquard.errors import ProgramError
from jaxquard.ir.program.order import find_waits, order_program
from jaxquard.ir.program.parse import parse_program

TEXT = """\
call 0 f(float32[]) -> (float32[])
actor 0
  recv s0 <- actor 1 : float32[]
  recv s1 <- actor 1 : float32[]
  run  s2 = 0F1 f#0(s1)
  send s2 -> actor 1
  run  s3 = 0F0 f#0(s0)
  free s0, s1, s2
  output result 0 part 0 = s3
actor 1
  input s0 = arg 0 part 0 : float32[]
  run  s1 = 1F0 f#0(s0)
  send s1 -> actor 0
  send s0 -> actor 0
  recv s2 <- actor 0 : float32[]
  free s1
  output result 1 part 0 = s2
"""


def test_waits_are_first_uses():
    first, second = (find_waits(actor) for actor in parse_program(TEXT).actors)
    assert [(w.instruction, w.source, w.message, w.slot) for w in first] == [(2, 1, 1, 1), (4, 1, 0, 0)]
    assert [(w.instruction, w.source, w.message, w.slot) for w in second] == [(5, 0, 0, 2)]


def test_every_instruction_comes_after_what_it_waits_for():
    program = parse_program(TEXT)
    order = order_program(program)
    assert sorted(order) == [(0, i) for i in range(6)] + [(1, i) for i in range(5)]
    assert order.index((1, 2)) < order.index((0, 2)) < order.index((0, 3))


def test_a_cycle_of_three_is_named():
    text = "call 0 f(float32[]) -> (float32[])\n" + "".join(
        f"actor {actor}\n recv s0 <- actor {(actor + 1) % 3} : float32[]\n send s0 -> actor {(actor + 2) % 3}\n"
        for actor in range(3)
    )
    with pytest.raises(ProgramError) as caught:
        order_program(parse_program(text))
    assert str(caught.value) == (
        "deadlock: actor 0 waits at instruction 1 (send s0 -> actor 2) for s0 from actor 1; "
        "actor 1 waits at instruction 1 (send s0 -> actor 0) for s0 from actor 2; "
        "actor 2 waits at instruction 1 (send s0 -> actor 1) for s0 from actor 0. "
        "Move a send before the instruction that waits."
    )


def test_outputs_wait_at_the_end():
    text = "actor 0\n recv s0 <- actor 1 : float32[]\n output result 0 part 0 = s0\nactor 1\n"
    with pytest.raises(ProgramError, match="actor 0 waits at its end for s0 from actor 1"):
        order_program(parse_program(text))
