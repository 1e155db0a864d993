"""The page: well-formed, whole, and with the numbers of the data."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from jaxquard.evaluate.cfp import Results, cfp_page
from jaxquard.evaluate.cfp.headlines import VERDICTS, headlines
from jaxquard.evaluate.common.headlines import verdict_counts
from tests.evaluate.cfp.made_cells import made_cell, made_results, priced_for


@pytest.fixture(scope="module")
def page():
    return cfp_page(made_results())


def test_every_chart_is_well_formed(page):
    charts = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(charts) == 1 + 4 + 1 + 3 + 4 + 5 + 2 + 4 + 2 + 2
    for chart in charts:
        for element in ElementTree.fromstring(chart).iter():
            for name, value in element.attrib.items():
                assert "nan" not in value, name
                assert "inf" not in value, name


def test_figures_are_in_the_order_of_the_paper(page):
    found = re.findall(r'<section id="([^"]+)">', page)
    figures = [f"figure-{number}" for number in (1, 7, 8, 9, 10, 11, 12, 13, 14)]
    assert found == ["headlines", "claims", *figures, "method"]


def test_the_page_needs_nothing_else(page):
    assert not re.search(r"(src|href)=", page)
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


def test_numbers_are_those_of_the_data(page):
    # Tokens a second of the chosen plan of the first cell: 8 sequences of 32 in 10 ms.
    assert ">25.6</text>" in page
    assert "1.50x, too large" in page
    assert "105 of 114" in page
    # 0.2 of 20 ms more, in the mean over runs, is what numpy says in the test of the figure.
    assert "0.192" in page
    assert verdict_counts(headlines(made_results()), VERDICTS) in page


def test_it_says_what_cannot_be_compared(page):
    assert "seconds, bytes and the size of a gain cannot be compared" in page
    assert "quick run" not in page
    assert "quick run" in cfp_page(Results(cells=(made_cell(is_thin=True),)))


def test_it_says_where_not_all_strategies_were_run(page):
    assert "Not all strategies were run" not in page
    cell = made_cell()
    some = replace(cell, spec=replace(cell.spec, num_strategies=12))
    assert "Not all strategies were run" in cfp_page(Results(cells=(some,)))


def test_figures_without_cells_are_left_out():
    page = cfp_page(Results(cells=(made_cell("gpt", num_strategies=0),)))
    found = re.findall(r'<section id="(figure-\d+)">', page)
    assert found == ["figure-7", "figure-8", "figure-10", "figure-12"]


def test_a_page_without_cells():
    assert "0 of 13 headlines" in cfp_page(Results())


def test_a_page_that_is_priced_says_so(page):
    priced = cfp_page(priced_for("a100-pcie-8", made_results()))
    assert "Nothing here ran: every time is priced for a100-pcie-8 by its own compiler." in priced
    assert "8 chips of a100-pcie-8, compiled by jax 1" in priced
    assert "redone by jaxquard, priced for a100-pcie-8" in priced
    assert "Everything here was measured" in page
    assert "Everything here was measured" not in priced
    assert "priced whole, ms" in priced
    assert "V100" not in priced
    charts = (re.findall(r"<svg.*?</svg>", text, re.DOTALL) for text in (page, priced))
    assert len(next(charts)) == len(next(charts))


def test_a_page_for_v100s_says_what_was_compiled():
    priced = cfp_page(priced_for("v100-nvlink-4", made_results()))
    assert "CUDA 13 does not compile for a V100 (compute capability 7.0)" in priced
    assert "of 6 headlines" in priced
