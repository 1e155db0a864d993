"""Headlines in their units."""

import pytest

from jaxquard.evaluate.common.headlines import in_unit, span_in_unit


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "x", "-"),
        (1.2345, "x", "1.23x"),
        (0.755, "x below", "0.76x"),
        (13.84, "%", "13.8 %"),
        (0.5, "min", "30 s"),
        (12.2, "min", "12 min"),
        (0.03286, "error", "0.0329"),
        (105, "programs", "105"),
    ],
)
def test_numbers_in_their_units(value, unit, text):
    assert in_unit(value, unit) == text


def test_bands_in_words():
    assert span_in_unit((10.83, 42.0), "%") == "10.8 to 42.0 %"
    assert span_in_unit((3.1, 3.1), "%") == "3.1 %"
    assert span_in_unit((2.17, 3.0), "x") == "2.17x to 3.00x"
