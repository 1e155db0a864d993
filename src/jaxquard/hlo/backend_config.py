"""The settings that a compiler leaves on an operation, as JSON after `backend_config=`."""

import json
import re
from typing import Any

from jaxquard.hlo.module import Operation

_START = re.compile(r"\bbackend_config=")


def backend_config(operation: Operation) -> dict[str, Any]:
    """Returns the settings; none where there are none, or in another form than JSON."""
    found = _START.search(operation.attributes)
    if found is None:
        return {}
    try:
        config, _ = json.JSONDecoder().raw_decode(operation.attributes, found.end())
        # Some versions write it as a text in quotes.
        config = json.loads(config) if isinstance(config, str) else config
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}


def estimated_cycles(operation: Operation) -> int | None:
    """Returns the cycles that the TPU's compiler estimates; None where it says nothing."""
    if "estimated_cycles" not in operation.attributes:
        return None
    config = backend_config(operation)
    cycles = config.get("estimated_cycles") or config.get("window_config", {}).get("estimated_cycles")
    return int(cycles) if cycles and int(cycles) > 0 else None
