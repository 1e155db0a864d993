import pytest

from jaxquard.ir.array_type import ArrayType, usable_donations


@pytest.mark.parametrize("text", ["float32[16,64]", "float32[16,64]{data,-}", "bfloat16[8]{data+model}", "key<fry>[]"])
def test_a_text_parses_back(text):
    assert str(ArrayType.parse(text)) == text


@pytest.mark.parametrize(
    ("donated", "inputs", "outputs", "usable"),
    [
        ((0, 1), "ab", "ab", (0, 1)),
        ((0, 1), "aa", "a", (0,)),
        ((1, 0), "aa", "a", (1,)),
        ((0,), "ab", "b", ()),
        ((2,), "aba", "aab", (2,)),
        ((), "a", "a", ()),
    ],
)
def test_an_output_reuses_the_buffer_of_one_donated_input_of_its_kind(donated, inputs, outputs, usable):
    assert usable_donations(donated, inputs=inputs, outputs=outputs) == usable
