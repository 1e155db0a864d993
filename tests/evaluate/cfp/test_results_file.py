"""Cells to JSON and back, and files that are something else."""

import json
import re

import pytest

from jaxquard.errors import JaxquardError
from jaxquard.evaluate.cfp import Results, read_results, results_text
from tests.evaluate.cfp.made_cells import made_cell, made_results


def test_results_come_back_as_they_were(tmp_path):
    results = made_results()
    path = tmp_path / "results.json"
    path.write_text(results_text(results))
    assert read_results(path) == results


def test_nothing_comes_back_as_nothing(tmp_path):
    path = tmp_path / "results.json"
    path.write_text(results_text(Results()))
    assert read_results(path) == Results()


def test_the_text_is_plain_json_without_infinities():
    content = json.loads(results_text(Results(cells=(made_cell(),))), parse_constant=pytest.fail)
    assert content["schema"] == "jaxquard.reproduce.cfp"
    assert content["cells"][0]["runs"][0]["role"] == "finalist"
    assert content["cells"][0]["spec"]["mesh"] == [8]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no JSON. Give the file that an earlier run wrote."),
        ("[]", "expected the schema jaxquard.reproduce.cfp, version 1, but found None."),
        ('{"schema": "jaxquard.reproduce.meshslice"}', "but found jaxquard.reproduce.meshslice."),
        (
            '{"schema": "jaxquard.reproduce.cfp", "version": 1}',
            "truncated: the file lacks the key cells. Remove it",
        ),
        (
            '{"schema": "jaxquard.reproduce.cfp", "version": 1, "cells": [{"runs": 1}], "depths": []}',
            "was changed or truncated",
        ),
    ],
)
def test_another_file_is_refused(tmp_path, text, said):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(JaxquardError, match=re.escape(said)):
        read_results(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(JaxquardError, match=r"cannot read .*none\.json \(No such file"):
        read_results(tmp_path / "none.json")


def test_names_of_cells():
    assert made_cell(num_layers=1).spec.name == "gpt, 1 layer of 256, batch 8"
    assert made_cell(mesh=(2, 4)).spec.name == "gpt, 2 layers of 256, batch 8, mesh 2x4"
    assert made_cell(limit_bytes=3 * 2**20).spec.name.endswith(", at most 3 MiB")
