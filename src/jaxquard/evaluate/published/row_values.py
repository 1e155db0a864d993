"""The columns of a published row, as numbers where they are numbers."""

import math
import re
from collections.abc import Mapping

from jaxquard.errors import PublishedDataError

_EMPTY = ("n/a", "na", "-", "?", "nan", "none given")
_OFF = ("none", "no", "off", "false")


class RowValues:
    """A row by its columns; one that says nothing is empty."""

    def __init__(self, row: Mapping[str, str]):
        self._row = row

    def text(self, column: str) -> str:
        """Returns what a column says."""
        value = (self._row.get(column) or "").strip()
        return "" if value.lower() in _EMPTY else value

    def number(self, column: str) -> float | None:
        """Returns a number as publications write it: "1,039", "~300", "4.2k", "51.4%", "16x8"; None if it is none."""
        text = self.text(column).replace(",", "")
        product = re.fullmatch(r"(\d+)\s*[x×*]\s*(\d+)", text)
        if product:
            return float(int(product[1]) * int(product[2]))
        found = re.match(r"[~>]?\s*(\d[\d_]*\.?\d*(?:e[+-]?\d+)?)\s*([kKmM]?)", text)
        if not found:
            return None
        value = float(found[1]) * {"": 1, "k": 1e3, "m": 1e6}[found[2].lower()]
        return value if math.isfinite(value) else None

    def whole(self, column: str) -> int | None:
        """Returns a count of at least 1; None if the column is empty or has no number."""
        value = self.number(column)
        return None if value is None else max(1, round(value))

    def degree(self, column: str) -> int | None:
        """Returns a count that decides what runs; None if the column is empty or says that there is none.

        Raises:
            PublishedDataError: if the column says something else.
        """
        text = self.text(column)
        if not text or text.lower() in _OFF:
            return None
        value = self.whole(column)
        if value is None:
            raise PublishedDataError(f"{column} is {text!r}, which is no count of 1 or more.")
        return value

    def size(self, column: str) -> int:
        """Returns a count that a row must have.

        Raises:
            PublishedDataError: if the column is empty or says something else.
        """
        value = self.degree(column)
        if value is None or self.number(column) == 0:
            raise PublishedDataError(f"{column} is {self.text(column) or 'empty'}, but must be a count of 1 or more.")
        return value
