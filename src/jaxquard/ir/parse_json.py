"""Parses JSON that a stranger may have written: whatever is wrong with it is one `DataError` of one line.

Python's own parser raises `RecursionError` for deep nesting, and numbers of thousands of digits take it long.
"""

import json
from typing import Any

from jaxquard.ir.codec import DataError

_MAX_DIGITS = 40


def parse_json(text: str | bytes) -> Any:
    """Returns the value of a JSON text.

    Raises:
        DataError: if the text is no JSON, is nested too deeply, or has an integer that nothing here can be.
    """
    try:
        return json.loads(text, parse_int=_integer)
    except DataError:
        raise
    except RecursionError:
        raise DataError("it is nested too deeply") from None
    except ValueError as error:
        raise DataError(" ".join(str(error).split())) from None


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise DataError(f"it has an integer of {len(digits)} digits, and at most {_MAX_DIGITS} make sense")
    return int(digits)
