"""Large host values that several processes take go into Ray's object store once."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxquard.runtime.ray.import_ray import import_ray

_LEAST_BYTES = 64 * 1024


def share_once(inputs: Sequence[Sequence[Any]], *, num_processes: int) -> list[list[Any]]:
    """The inputs of each actor, with references in the place of large values that more than one process takes."""
    num_takers: dict[int, int] = {}
    for values in inputs:
        for value in values:
            if isinstance(value, np.ndarray) and value.nbytes >= _LEAST_BYTES:
                num_takers[id(value)] = num_takers.get(id(value), 0) + num_processes
    put: dict[int, Any] = {}

    def share(value: Any) -> Any:
        if num_takers.get(id(value), 0) < 2:
            return value
        if id(value) not in put:
            put[id(value)] = import_ray().put(value)
        return put[id(value)]

    return [[share(value) for value in values] for values in inputs]
