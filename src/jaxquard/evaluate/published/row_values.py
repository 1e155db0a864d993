"""The columns of a published row, as numbers where they are numbers."""

import re
from collections.abc import Mapping

_EMPTY = ("n/a", "na", "-", "?", "nan", "none given")


class RowValues:
    """A row by its columns; one that says nothing is empty."""

    def __init__(self, row: Mapping[str, str]):
        self._row = row

    def text(self, column: str) -> str:
        """Returns what a column says."""
        value = (self._row.get(column) or "").strip()
        return "" if value.lower() in _EMPTY else value

    def number(self, column: str) -> float | None:
        """Returns a number as publications write it: "1,039", "~300", "4.2k", "51.4%"."""
        found = re.match(r"[~>]?\s*(\d[\d_]*\.?\d*(?:e[+-]?\d+)?)\s*([kKmM]?)", self.text(column).replace(",", ""))
        if not found:
            return None
        return float(found[1]) * {"": 1, "k": 1e3, "m": 1e6}[found[2].lower()]

    def whole(self, column: str) -> int | None:
        """Returns a count of at least 1."""
        value = self.number(column)
        return None if value is None else max(1, round(value))
