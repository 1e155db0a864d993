"""The cover of a sequence of blocks by segments."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxquard.intraop.segments.find_segments import cover

THREES = 81


def words_of(text):
    return [ord(letter) for letter in text]


def cover_text(text, *, counts=None, max_strategies=THREES, crossing=None):
    """The runs as texts."""
    counts = counts or [3] * len(text)
    runs = cover(words_of(text), counts, max_strategies=max_strategies, crossing=crossing)
    return [text[start:stop] for start, stop in runs]


@st.composite
def sequences(draw, letters="abc", max_size=9):
    text = draw(st.text(letters, min_size=1, max_size=max_size))
    of_letter = {letter: draw(st.integers(1, 4)) for letter in letters}
    return text, [of_letter[letter] for letter in text]


class TestCover:
    @given(sequences(max_size=30), st.integers(1, 200), st.data())
    def test_runs_tile_the_sequence_within_the_bound(self, sequence, max_strategies, data):
        text, counts = sequence
        crossing = data.draw(st.lists(st.integers(0, 3), min_size=len(text), max_size=len(text)))
        runs = cover(words_of(text), counts, max_strategies=max_strategies, crossing=crossing)
        assert [place for run in runs for place in range(*run)] == list(range(len(text)))
        for start, stop in runs:
            assert stop - start == 1 or math.prod(counts[start:stop]) <= max_strategies

    @given(st.text("abcd", min_size=1, max_size=4), st.integers(2, 12), st.sampled_from(["", "e", "ef"]), st.booleans())
    def test_layers_of_any_blocks_are_of_one_kind(self, layer, num_layers, start, has_end):
        """As few kinds as there can be: the layers, what comes before them and what comes after."""
        end = "gh" if has_end else ""
        found = cover_text(start + layer * num_layers + end)
        assert len(set(found)) == 1 + bool(start) + bool(end)

    @given(st.integers(2, 40))
    def test_layers_between_an_embedding_and_a_head(self, num_layers):
        found = cover_text("e" + "abcd" * num_layers + "h")
        assert found == ["e", *["abcd"] * num_layers, "h"]

    def test_one_layer_is_split_where_the_bound_wants_it(self):
        assert len(cover_text("eabcdh")) == 2

    @pytest.mark.parametrize("count", [2, 3, 8])
    def test_alternating_layers_are_two_kinds(self, count):
        """Layers with and without experts: eight blocks are too many for one segment."""
        found = cover_text("abcdABCD" * count)
        assert found == ["abcd", "ABCD"] * count

    def test_a_pair_that_is_small_enough_is_one_kind(self):
        assert cover_text("am" * 5) == ["am"] * 5

    def test_of_rotations_the_one_that_fewest_values_cross_is_taken(self):
        """Both cover four."""
        assert cover_text("xababa", crossing=[0, 1, 2, 1, 2, 1]) == ["x", "ab", "ab", "a"]
        assert cover_text("xababa", crossing=[0, 2, 1, 2, 1, 2]) == ["xa", "ba", "ba"]

    def test_a_word_of_more_strategies_than_the_bound_stands_alone(self):
        assert cover_text("aba", counts=[100, 2, 100], max_strategies=10) == ["a", "b", "a"]

    def test_depth_does_not_change_the_kinds(self):
        assert set(cover_text("e" + "abcd" * 4 + "h")) == set(cover_text("e" + "abcd" * 96 + "h"))
