import dataclasses
import json

import pytest

from jaxquard.pricing import Price, PriceCache, Provenance
from jaxquard.pricing.cache import default_folder

PRICE = Price(
    time_s=0.25,
    peak_bytes=1000,
    spread=None,
    provenance=Provenance(
        pricer="measured", jax_version="1", platform="cpu", device_kind="cpu: x", num_devices=8, date="d", num_runs=10
    ),
)


def test_prices_come_back(tmp_path):
    cache = PriceCache(tmp_path / "new" / "folder")
    assert cache.find("a1") is None
    cache.store("a1", PRICE, name="segment 1")
    cache.add_alias("b2", "a1")
    assert PriceCache(cache.folder).find("a1") == PRICE
    assert cache.find_quickly("b2") == PRICE
    assert cache.find_quickly("a1") is None
    assert sorted(path.name for path in cache.folder.iterdir()) == ["alias-b2.json", "price-a1.json"]


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema_version": 1}', '{"schema_version": 1, "price": 3}'])
def test_a_corrupt_file_counts_as_absent(tmp_path, text):
    cache = PriceCache(tmp_path)
    cache.store("a1", PRICE, name="p")
    cache.add_alias("b2", "a1")
    for path in tmp_path.iterdir():
        path.write_text(text)
    assert cache.find("a1") is None
    assert cache.find_quickly("b2") is None
    cache.store("a1", PRICE, name="p")
    assert cache.find("a1") == PRICE


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.update(schema_version=2),
        lambda content: content["price"].update(time_s="fast"),
        lambda content: content["price"].update(more=1),
        lambda content: content["price"].pop("spread"),
        lambda content: content["price"]["provenance"].pop("date"),
        lambda content: content["price"]["provenance"].update(num_runs=None),
    ],
)
def test_another_schema_counts_as_absent(tmp_path, change):
    cache = PriceCache(tmp_path)
    cache.store("a1", PRICE, name="p")
    path = tmp_path / "price-a1.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    assert cache.find("a1") is None


def test_bytes_that_are_no_text_count_as_absent(tmp_path):
    (tmp_path / "price-a1.json").write_bytes(b"\xff\xfe\x00")
    assert PriceCache(tmp_path).find("a1") is None


def test_all_fields_are_kept(tmp_path):
    price = dataclasses.replace(PRICE, compute_s=0.2, communication_s=0.05, spread=0.125)
    cache = PriceCache(tmp_path)
    cache.store("a1", price, name="p")
    assert cache.find("a1") == price


def test_the_default_folder_is_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "jaxquard" / "prices"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_folder() == tmp_path / ".cache" / "jaxquard" / "prices"


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    cache = PriceCache(tmp_path / "file")
    cache.store("a1", PRICE, name="p")
    assert cache.find("a1") is None
    assert "a price could not be kept" in caplog.text


def test_a_file_of_before_prices_said_what_was_modelled(tmp_path):
    cache = PriceCache(tmp_path)
    cache.store("a1", PRICE, name="p")
    path = tmp_path / "price-a1.json"
    content = json.loads(path.read_text())
    del content["price"]["provenance"]["modelled"]
    path.write_text(json.dumps(content))
    assert cache.find("a1") == PRICE
    content["price"]["provenance"]["modelled"] = 7
    path.write_text(json.dumps(content))
    assert cache.find("a1") is None
