import time

import pytest

from jaxquard.errors import ProgramError
from jaxquard.ir.program.check import check_program
from jaxquard.ir.program.parse import parse_program

CALLS = """\
call 0 double(float32[4]) -> (float32[4])
call 1 take(float32[4]) -> (float32[4]) donates (0)
call 2 add(float32[4], float32[4]) -> (float32[4]) donates (0)
call 3 make() -> (float32[4])
call 4 sum(float32[4]) -> (float32[])
"""

GOOD = f"""\
donates args (1)
{CALLS}actor 0
  input   s0 = arg 0 part 0 : float32[4]
  input   s1 = arg 1 part 0 : float32[4]
  const   s2 = value 0 : float32[4]
  run     s3 = 0F0 double#0(s0)
  send    s3 -> actor 1
  run     s4 = 0F1 add#2(s1, s2)
  free    s3
  recv    s5 <- actor 1 : float32[4]
  run     s6 = 0B0 add#2(s5, s4)
  output  result 0 part 0 = s4
  output  result 1 part 0 = s6
actor 1
  recv    s0 <- actor 0 : float32[4]
  run     s1 = 1F0 double#0(s0)
  send    s1 -> actor 0
  free    s0
  output  result 0 part 1 = s1
"""


def check(text):
    check_program(parse_program(text))


def broken(*lines):
    """The good program with some lines changed: pairs (old, new)."""
    text = GOOD
    for old, new in lines:
        assert text.count(old) == 1
        text = text.replace(old, new)
    return text


def one_actor(*lines, donates=""):
    return f"{donates}{CALLS}actor 0\n" + "\n".join(lines)


def test_a_good_program_passes():
    check(GOOD)


INPUT = "input s0 = arg 0 part 0 : float32[4]"

ERRORS = {
    "defined twice": (
        one_actor(INPUT, "run s1 = a double#0(s0)", "run s1 = b double#0(s0)", "free s1"),
        "actor 0, instruction 1 (run s1 = b double#0(s0)): s1 is defined a second time",
    ),
    "input defined twice": (
        one_actor(INPUT, "const s0 = value 0 : float32[4]"),
        "actor 0: s0 is defined a second time",
    ),
    "never defined": (
        one_actor("slot s0 : float32[4]"),
        "actor 0: s0 is never defined",
    ),
    "used before": (
        one_actor("run s1 = a double#0(s0)", "run s0 = b make#3()", "free s0, s1"),
        "actor 0, instruction 0 (run s1 = a double#0(s0)): s0 is used before anything has defined it",
    ),
    "used after free": (
        one_actor(INPUT, "free s0", "run s1 = a double#0(s0)", "output result 0 part 0 = s1"),
        "actor 0, instruction 1 (run s1 = a double#0(s0)): s0 is used after it was freed",
    ),
    "freed twice": (
        one_actor(INPUT, "free s0, s0"),
        "actor 0, instruction 0 (free s0, s0): s0 is freed twice",
    ),
    "used after donation": (
        one_actor("run s0 = a make#3()", "run s1 = b take#1(s0)", "run s2 = c double#0(s0)", "free s1, s2"),
        "actor 0, instruction 2 (run s2 = c double#0(s0)): s0 is used after it was donated",
    ),
    "sent after free": (
        broken(("  send    s3 -> actor 1\n", ""), ("  free    s3\n", "  free    s3\n  send s3 -> actor 1\n")),
        "actor 0, instruction 3 (send s3 -> actor 1): s3 is used after it was freed",
    ),
    "input type": (
        one_actor("input s0 = arg 0 part 0 : float32[5]", "run s1 = a double#0(s0)", "free s1"),
        "actor 0, instruction 0 (run s1 = a double#0(s0)): the call takes float32[4], but s0 is float32[5]",
    ),
    "output type": (
        one_actor("slot s1 : float32[5]", INPUT, "run s1 = a double#0(s0)", "free s1"),
        "actor 0, instruction 0 (run s1 = a double#0(s0)): the call gives float32[4], but s1 is float32[5]",
    ),
    "input sharding": (
        one_actor("input s0 = arg 0 part 0 : float32[4]{data}", "run s1 = a double#0(s0)", "free s1"),
        "the call takes float32[4], but s0 is float32[4]{data}",
    ),
    "number of inputs": (
        one_actor(INPUT, "run s1 = a double#0(s0, s0)", "free s1"),
        "actor 0, instruction 0 (run s1 = a double#0(s0, s0)): the call takes 1 values, but the instruction has 2",
    ),
    "number of outputs": (
        one_actor(INPUT, "run - = a double#0(s0)"),
        "actor 0, instruction 0 (run - = a double#0(s0)): the call gives 1 values, but the instruction has 0",
    ),
    "missing receive": (
        broken(("  recv    s5 <- actor 1 : float32[4]", "  run s5 = x make#3()")),
        "actor 1, instruction 2 (send s1 -> actor 0): send 0 to actor 0 has no receive there",
    ),
    "missing send": (
        broken(("  send    s1 -> actor 0\n", "")),
        "actor 0, instruction 4 (recv s5 <- actor 1): receive 0 from actor 1 has no send there",
    ),
    "number of slots": (
        broken(("  send    s3 -> actor 1", "  send    s3, s0 -> actor 1")),
        "actor 1, instruction 0 (recv s0 <- actor 0): receive 0 from actor 0 takes 1 slots, but that send has 2",
    ),
    "types of messages": (
        broken(("  run     s3 = 0F0 double#0(s0)", "  run     s3 = 0F0 sum#4(s0)")),
        "actor 1, instruction 0 (recv s0 <- actor 0): s0 is float32[4], but s3 that actor 0 sends is float32[]",
    ),
    "no such actor": (
        one_actor(INPUT, "send s0 -> actor 0"),
        "actor 0, instruction 0 (send s0 -> actor 0): there is no other actor 0; the program has 1",
    ),
    "no such source": (
        one_actor("recv s0 <- actor 3 : float32[4]", "free s0"),
        "actor 0, instruction 0 (recv s0 <- actor 3): there is no other actor 3; the program has 1",
    ),
    "missing result": (
        broken(("  output  result 1 part 0 = s6", "  output  result 2 part 0 = s6")),
        "result 1 part 0 is missing: no actor has it among its outputs",
    ),
    "missing part": (
        broken(("result 0 part 1", "result 0 part 2")),
        "result 0 part 1 is missing: no actor has it among its outputs",
    ),
    "freed result": (
        one_actor(INPUT, "run s1 = a double#0(s0)", "free s1", "output result 0 part 0 = s1"),
        "actor 0: result 0 part 0 is read from s1 after it was freed",
    ),
    "donated result": (
        one_actor("run s0 = a make#3()", "run s1 = b take#1(s0)", "free s1", "output result 0 part 0 = s0"),
        "actor 0: result 0 part 0 is read from s0 after it was donated",
    ),
    "result given twice": (
        one_actor(INPUT, "output result 0 part 0 = s0", "output result 0 part 0 = s0"),
        "actor 0: s0 (float32[4]) is given as result 0 part 0, which is float32[4] already",
    ),
    "leak": (
        one_actor(INPUT, "run s1 = a double#0(s0)"),
        "actor 0: s1 is still there at the end (a leak). Free it after its last use",
    ),
    "leak of a donated argument": (
        one_actor(INPUT, donates="donates args (0)\n"),
        "actor 0: s0 is still there at the end (a leak)",
    ),
    "leak of a received value": (
        broken(("  free    s0\n", "")),
        "actor 1: s0 is still there at the end (a leak)",
    ),
    "donated after it was sent": (
        broken(("  run     s4 = 0F1 add#2(s1, s2)\n  free    s3", "  run     s4 = 0F1 add#2(s3, s2)\n  free    s1")),
        "actor 0, instruction 2 (run s4 = 0F1 add#2(s3, s2)): s3 is donated, but was sent before and a peer may "
        "still read it. Free it instead",
    ),
    "donated argument that is not the step's": (
        one_actor(INPUT, "run s1 = a take#1(s0)", "output result 0 part 0 = s1"),
        "s0 is donated, but it is argument 0, which the step does not donate",
    ),
    "donated constant": (
        one_actor("const s0 = value 0 : float32[4]", "run s1 = a take#1(s0)", "output result 0 part 0 = s1"),
        "s0 is donated, but it is a constant",
    ),
    "donated and passed again": (
        one_actor("run s0 = a make#3()", "run s1 = b add#2(s0, s0)", "output result 0 part 0 = s1"),
        "s0 is donated, but the same call takes it more than once",
    ),
    "deadlock": (
        f"""{CALLS}actor 0
  recv s0 <- actor 1 : float32[4]
  run  s1 = 0F0 double#0(s0)
  send s1 -> actor 1
  free s0, s1
actor 1
  recv s0 <- actor 0 : float32[4]
  run  s1 = 1F0 double#0(s0)
  send s1 -> actor 0
  free s0, s1""",
        "deadlock: actor 0 waits at instruction 1 (run s1 = 0F0 double#0(s0)) for s0 from actor 1; "
        "actor 1 waits at instruction 1 (run s1 = 1F0 double#0(s0)) for s0 from actor 0. "
        "Move a send before the instruction that waits",
    ),
}


@pytest.mark.parametrize(("text", "message"), ERRORS.values(), ids=ERRORS.keys())
def test_errors_name_the_place(text, message):
    with pytest.raises(ProgramError) as caught:
        check(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_call_that_is_not_there():
    program = parse_program(one_actor(INPUT, "run s1 = a double#0(s0)", "free s1"))
    without_calls = type(program)(calls=(), actors=program.actors)
    with pytest.raises(ProgramError, match="there is no call 0; the program has 0"):
        check_program(without_calls)


def test_a_transfer_may_change_the_sharding():
    check(
        broken(("recv    s5 <- actor 1 : float32[4]", "recv    s5 <- actor 1 : float32[4]{data}")).replace(
            "run     s6 = 0B0 add#2(s5, s4)", "free    s5\n  run     s6 = 0B0 double#0(s4)"
        )
    )


def long_program(num_actors, num_microbatches):
    lines = [CALLS]
    for actor in range(num_actors):
        lines.append(f"actor {actor}")
        lines.append("  input s0 = arg 0 part 0 : float32[4]")
        slot = 1
        for microbatch in range(num_microbatches):
            x = "s0"
            if actor:
                x, slot = f"s{slot}", slot + 1
                lines.append(f"  recv {x} <- actor {actor - 1} : float32[4]")
            lines.append(f"  run s{slot} = {actor}F{microbatch} double#0({x})")
            if actor + 1 < num_actors:
                lines.append(f"  send s{slot} -> actor {actor + 1}")
            lines.append(f"  free s{slot}" + (f", {x}" if actor else ""))
            slot += 1
    return parse_program("\n".join(lines))


@pytest.mark.slow
def test_time_is_linear():
    programs = [long_program(8, num_microbatches) for num_microbatches in (625, 5000)]
    times_s = []
    for _ in range(3):
        for program in programs:
            start_s = time.process_time()
            check_program(program)
            times_s.append(time.process_time() - start_s)
    # Eight times as long, and room for collections of garbage; quadratic would be 64 times.
    assert min(times_s[1::2]) < 24 * min(times_s[::2])
