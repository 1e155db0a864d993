"""Names of dots cover neither each other, nor dots, nor lines where they can help it."""

from hypothesis import given
from hypothesis import strategies as st

from jaxquard.report.charts.place_labels import place_labels

PAGE = (0.0, 0.0, 600.0, 400.0)
coordinates = st.tuples(st.integers(150, 450).map(float), st.integers(100, 300).map(float))


def box(place, name, size=10.0):
    (x, y), anchor = place
    width = 0.6 * size * len(name)
    left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
    return left, y - 0.8 * size, left + width, y + 0.25 * size


def meet(one, other):
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def test_a_name_alone_stands_right_of_its_dot():
    (((x, y), anchor),) = place_labels([(100.0, 100.0)], ["name"], size=10.0, within=PAGE)
    assert (x > 100.0, abs(y - 100.0) < 5.0, anchor) == (True, True, "start")


def test_at_the_edge_it_stands_left():
    ((_, anchor),) = place_labels([(590.0, 100.0)], ["name"], size=10.0, within=PAGE)
    assert anchor == "end"


def test_it_keeps_off_a_line():
    line = (0.0, 100.0, 600.0, 100.0)
    (place,) = place_labels([(100.0, 100.0)], ["name"], size=10.0, within=PAGE, lines=[line])
    assert not meet(box(place, "name"), line)


@given(st.lists(coordinates, min_size=1, max_size=5))
def test_names_do_not_meet(points):
    names = [f"plan {number}" for number in range(len(points))]
    places = place_labels(points, names, size=10.0, within=PAGE)
    boxes = [box(place, name) for place, name in zip(places, names, strict=True)]
    for number, one in enumerate(boxes):
        assert not any(meet(one, other) for other in boxes[number + 1 :])
        assert not any(meet(one, (x - 4, y - 4, x + 4, y + 4)) for x, y in points)
