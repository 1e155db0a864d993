"""The page and the JSON."""

import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from jaxquard.evaluate.common.headlines import in_unit
from jaxquard.evaluate.meshslice import meshslice_page, results_text
from jaxquard.evaluate.meshslice.page.page_tables import band_words

VOID = {"meta", "br"}


class Checker(HTMLParser):
    """Collects the text and sees that every tag is closed."""

    def __init__(self):
        super().__init__()
        self.open, self.words = [], []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="session")
def page(results):
    return meshslice_page(results)


@pytest.fixture(scope="session")
def text(page):
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    return " ".join("".join(checker.words).replace("\xa0", " ").split())


def test_every_headline_is_on_the_page(results, text):
    for headline in results.headlines:
        unit = headline.paper.unit
        for words in (
            headline.paper.title,
            headline.paper.why,
            in_unit(headline.paper.value, unit),
            in_unit(headline.ours, unit),
            band_words(headline),
            headline.verdict.text,
        ):
            assert words in text


def test_a_band_names_its_sets(results, text):
    first, *_ = results.headlines
    assert band_words(first) == (
        "10.8 % (simulation, both ways, one launch) to 60.4 % (simulation, one way, a launch each)"
    )
    assert "63.8 % (simulation)" in text


def test_the_reasons_are_on_the_page(results, text):
    for reading in results.readings:
        row = " ".join([reading.text, *(f"{percent:.1f} %" for percent in reading.percents.values())])
        assert row.replace(" ", "") in text.replace(" ", "")
    assert "87.3 % on 16 chips for Megatron-NLG, where ours is 86.7 %" in text
    assert (
        "Of 7 readings, 0 for GPT-3 and 3 for Megatron-NLG come within 10 % of the paper's gain, none for both." in text
    )
    assert "It lies below both for GPT-3 and below both for Megatron-NLG: the model is too kind" in text


def test_every_figure_and_table_is_on_the_page(text):
    for number in range(9, 16):
        assert f"Figure {number}: " in text
    for words in ("Table 2: ", "Table 3: ", "Section 7: ", "402.0 MiB", "336.0 MiB", "307.5 MiB", "1.629 GB"):
        assert words in text
    assert "Beyond the paper: 1,024 and 4,096 chips Not in the paper." in text
    assert "Layers other than FC are modelled, not measured, by a roofline" in text
    assert "That cannot be redone without the chips." in text
    assert "5 of 17 headlines reproduce, 6 lie within the band, 6 do not reproduce" in text


def test_the_page_needs_nothing_else(page):
    links = re.findall(r"https?://[^\"' <]+", page)
    assert set(links) == {"http://www.w3.org/2000/svg"}
    assert "<script" not in page
    assert "<img" not in page


def test_the_charts_are_pictures(page):
    charts = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert len(charts) == 1 + 2 * 8
    for chart in charts:
        root = ElementTree.fromstring(chart)
        _, _, width, _ = map(float, root.attrib["viewBox"].split())
        for box in root.iter("{http://www.w3.org/2000/svg}rect"):
            assert float(box.attrib["x"]) + float(box.attrib["width"]) <= width + 1e-6


def test_json(results):
    content = json.loads(results_text(results))
    assert (content["schema"], content["version"]) == ("jaxquard.reproduce.meshslice", 1)
    assert list(content) == [
        "schema",
        "version",
        "headlines",
        *(f"figure_{number}" for number in range(9, 16)),
        "table_2",
        "table_3",
        "section_7",
        "beyond_the_paper",
        "what_runs",
        "readings",
        "other_sendrecvs",
        "claims",
    ]
    first = content["headlines"][0]
    assert set(first) == {
        "key", "title", "section", "unit", "paper", "ours", "band", "band_sets", "fitted", "by_set", "verdict", "why",
    }  # fmt: skip
    assert first["band"] == [min(list(first["by_set"].values())[:8]), max(list(first["by_set"].values())[:8])]
    assert len(first["by_set"]) == 12
    assert set(content["figure_9"][0]) >= {"model", "algorithm", "num_chips", "mesh_shape", "utilisation"}
    assert len(content["figure_15"]["layers"]) == 8
