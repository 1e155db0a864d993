"""Prices on disk, so that a second search is instant and an interrupted one goes on.

One small JSON file a price, named by the hash of the lowered program and of where it was measured. A second kind of
file leads from the cheap key of a program (`fingerprint`) to that hash. Files are written whole or not at all; one that
cannot be read counts as absent and is written anew. Nothing is ever deleted: the folder may be removed at any time.

Pricers by a compiler keep compiled programs in a folder inside (`compiled`), and the planner the cost tables of steps
(`tables`) and the prices of plans that it measured again (`again`), in the same way.
"""

import dataclasses
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

from jaxquard.pricing.price import Price, Provenance

SCHEMA_VERSION = 1
_log = logging.getLogger(__name__)


def default_folder() -> Path:
    """Returns the folder of the user's caches."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "jaxquard" / "prices"


class PriceCache:
    """Measured prices in a folder, by default the user's cache.

    Example:
        >>> import tempfile
        >>> mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pricer = jq.pricing.MeasuredPricer(mesh, cache=jq.pricing.PriceCache(folder))
        ...     pricer.close()
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self.folder = Path(folder) if folder is not None else default_folder()

    def find(self, key: str) -> Price | None:
        """The price under a key of a lowered program."""
        return _read_price(self._read(f"price-{key}.json"))

    def find_quickly(self, quick_key: str) -> Price | None:
        """The price under a cheap key."""
        content = self._read(f"alias-{quick_key}.json")
        key = None if content is None else content.get("price")
        return self.find(key) if isinstance(key, str) and key.isalnum() else None

    def store(self, key: str, price: Price, *, name: str) -> None:
        """Keeps a price; the name is for people who look into the folder."""
        self._write(f"price-{key}.json", {"name": name, "price": dataclasses.asdict(price)})

    def add_alias(self, quick_key: str, key: str) -> None:
        """Lets a cheap key lead to a price."""
        self._write(f"alias-{quick_key}.json", {"price": key})

    def _read(self, file_name: str) -> dict[str, Any] | None:
        try:
            content = json.loads((self.folder / file_name).read_text())
        except (OSError, ValueError, RecursionError):
            return None
        is_ours = isinstance(content, dict) and content.get("schema_version") == SCHEMA_VERSION
        return content if is_ours else None

    def _write(self, file_name: str, content: dict[str, Any]) -> None:
        try:
            self._replace(file_name, content)
        except OSError as error:  # A disk that is full or not ours costs the cache, not the search.
            _log.warning("a price could not be kept in %s: %s", self.folder, error)

    def _replace(self, file_name: str, content: dict[str, Any]) -> None:
        text = json.dumps({"schema_version": SCHEMA_VERSION, **content}, indent=1)
        replace_file(self.folder / file_name, text.encode())


def replace_file(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all, and its folder if it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


_PRICE_TYPES: dict[str, Any] = {
    "time_s": float,
    "compute_s": float | None,
    "communication_s": float | None,
    "peak_bytes": int,
    "spread": float | None,
}
_PROVENANCE_TYPES: dict[str, Any] = {
    "pricer": str,
    "jax_version": str,
    "platform": str,
    "device_kind": str,
    "num_devices": int,
    "date": str,
    "num_runs": int,
    "was_stopped_early": bool,
}
# Files of before there were these do not have them.
_LATER_PRICE_TYPES: dict[str, Any] = {"num_rematerialized": int}
_LATER_PROVENANCE_TYPES: dict[str, Any] = {"modelled": str}


def _read_price(content: dict[str, Any] | None) -> Price | None:
    """The price in a file; None if it is not exactly one."""
    price = None if content is None else content.get("price")
    price_types = {**_PRICE_TYPES, **_LATER_PRICE_TYPES}
    if not isinstance(price, dict):
        return None
    if not _PRICE_TYPES.keys() | {"provenance"} <= price.keys() <= price_types.keys() | {"provenance"}:
        return None
    provenance = price["provenance"]
    values = {name: price[name] for name in price_types if name in price}
    if not _has_types(values, {name: price_types[name] for name in values}) or not isinstance(provenance, dict):
        return None
    types = {**_PROVENANCE_TYPES, **_LATER_PROVENANCE_TYPES}
    if not _PROVENANCE_TYPES.keys() <= provenance.keys() <= types.keys():
        return None
    if not _has_types(provenance, {name: types[name] for name in provenance}):
        return None
    return Price(**values, provenance=Provenance(**provenance))


def _has_types(values: dict[str, Any], types: dict[str, Any]) -> bool:
    return all(isinstance(values[name], type_) for name, type_ in types.items())
