import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxquard.errors import ProgramError
from jaxquard.ir.array_type import ArrayType
from jaxquard.ir.program import (
    ActorProgram,
    Call,
    Constant,
    Free,
    Input,
    Output,
    Program,
    Recv,
    Run,
    Send,
)
from jaxquard.ir.program.parse import parse_program

TEXT = """\
donates args (0)
call 0 forward(float32[16,64], int32[]) -> (float32[16,16]{data,-}) donates (0)
actor 0
  input   s0 = arg 0 part 0 : float32[16,64]
  const   s1 = value 0 : int32[]
  run     s2 = 0F0 forward#0(s0, s1)
  send    s2 -> actor 1
  free    s2
actor 1
  recv    s0 <- actor 0 : float32[16,16]{data,-}
  output  result 0 part 2 = s0
"""


def small_program():
    x = ArrayType(dtype="float32", shape=(16, 64))
    y = ArrayType(dtype="float32", shape=(16, 16), spec=(("data",), ()))
    number = ArrayType(dtype="int32", shape=())
    return Program(
        calls=(Call(name="forward", inputs=(x, number), outputs=(y,), donated=(0,)),),
        actors=(
            ActorProgram(
                types=(x, number, y),
                inputs=(Input(slot=0, arg=0),),
                constants=(Constant(slot=1, value=0),),
                instructions=(
                    Run(task="0F0", call=0, inputs=(0, 1), outputs=(2,)),
                    Send(slots=(2,), target=1),
                    Free(slots=(2,)),
                ),
            ),
            ActorProgram(
                types=(y,),
                instructions=(Recv(slots=(0,), source=0),),
                outputs=(Output(slot=0, result=0, part=2),),
            ),
        ),
        donated_args=(0,),
    )


def test_the_text_is_readable():
    assert str(small_program()) == TEXT
    assert str(small_program()) == TEXT


def test_the_text_reads_back():
    assert parse_program(TEXT) == small_program()


def test_odd_names_and_empty_lists():
    call = Call(name='say "hi" (twice)', inputs=(), outputs=())
    actor = ActorProgram(
        types=(),
        instructions=(
            Run(task="<lambda> 1", call=0, inputs=(), outputs=()),
            Send(slots=(), target=0),
            Recv(slots=(), source=0),
            Free(slots=()),
        ),
    )
    program = Program(calls=(call,), actors=(actor, ActorProgram(types=())))
    text = str(program)
    assert r'run     - = "<lambda> 1" "say \"hi\" (twice)"#0()' in text
    assert parse_program(text) == program


def test_types_that_no_line_shows_have_a_line_of_their_own():
    scalar = ArrayType(dtype="float32", shape=())
    vector = ArrayType(dtype="float32", shape=(4,))
    call = Call(name="f", inputs=(), outputs=(scalar,))
    actor = ActorProgram(types=(vector, scalar), instructions=(Run(task="f", call=0, inputs=(), outputs=(0,)),))
    program = Program(calls=(call,), actors=(actor,))
    assert "  slot    s0 : float32[4]\n  slot    s1 : float32[]\n" in str(program)
    assert parse_program(str(program)) == program


@pytest.mark.parametrize(
    "line", ["jump 3", "  run s0 = 0F0", "  free s0, x", "call 7 f() -> ()", "  input s0 = arg 0 part 0 : float"]
)
def test_a_line_that_cannot_be_read_is_named(line):
    with pytest.raises(ProgramError, match="line 12 of the program cannot be read"):
        parse_program(TEXT + line)


names = st.text(min_size=1, max_size=8) | st.sampled_from(["0F0", "update.1", "<lambda>", "stage0-forward"])
numbers = st.integers(0, 20)
axes = st.lists(st.sampled_from(["data", "model"]), max_size=2, unique=True).map(tuple)
specs = st.lists(axes, max_size=2).map(tuple).map(lambda spec: spec if any(spec) else ())
types = st.builds(
    ArrayType,
    dtype=st.sampled_from(["float32", "bfloat16", "float8_e4m3fn", "key<fry>", "bool"]),
    shape=st.lists(numbers, max_size=3).map(tuple),
    spec=specs,
)
type_tuples = st.lists(types, max_size=3).map(tuple)


@st.composite
def programs(draw):
    calls = tuple(
        Call(name=draw(names), inputs=inputs, outputs=draw(type_tuples), donated=draw(st.sampled_from([(), (0, 2)])))
        for inputs in draw(st.lists(type_tuples, min_size=1, max_size=3))
    )
    return Program(
        calls=calls,
        actors=tuple(draw(actors(calls)) for _ in range(draw(st.integers(0, 3)))),
        donated_args=draw(st.lists(numbers, max_size=3).map(tuple)),
    )


@st.composite
def actors(draw, calls):
    """A list of any instructions on any slots that exist: the text does not mind whether it makes sense."""
    actor_types = draw(st.lists(types, min_size=1, max_size=6).map(tuple))
    slot = st.integers(0, len(actor_types) - 1)
    slots = st.lists(slot, max_size=3).map(tuple)
    unique_slots = st.lists(slot, max_size=3, unique=True).map(tuple)
    instruction = st.one_of(
        st.builds(Run, task=names, call=st.integers(0, len(calls) - 1), inputs=slots, outputs=unique_slots),
        st.builds(Send, slots=slots, target=numbers),
        st.builds(Recv, slots=slots, source=numbers),
        st.builds(Free, slots=slots),
    )
    return ActorProgram(
        types=actor_types,
        inputs=draw(st.lists(st.builds(Input, slot=slot, arg=numbers, part=numbers), max_size=2).map(tuple)),
        constants=draw(st.lists(st.builds(Constant, slot=slot, value=numbers), max_size=2).map(tuple)),
        instructions=draw(st.lists(instruction, max_size=8).map(tuple)),
        outputs=draw(st.lists(st.builds(Output, slot=slot, result=numbers, part=numbers), max_size=2).map(tuple)),
    )


@given(programs())
def test_every_program_reads_back(program):
    assert parse_program(str(program)) == program
