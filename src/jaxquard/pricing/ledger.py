"""Which programs of a call have their results, and what is left."""

import time
from collections.abc import Sequence

from jaxquard.pricing.price import Failure, OnProgress, Price, Progress


class Ledger:
    """The results of a call, by the places of the programs in it; tells of each as it comes."""

    def __init__(self, names: Sequence[str], on_progress: OnProgress | None) -> None:
        self._names, self._on_progress = names, on_progress
        self._results: dict[int, Price | Failure] = {}
        self._num_cached = 0
        self._start_s = time.monotonic()
        if names:
            self.tell(names[0])

    def __contains__(self, number: int) -> bool:
        return number in self._results

    def settle(self, number: int, result: Price | Failure, *, is_cached: bool = False) -> None:
        """Writes down a result."""
        self._results[number] = result
        self._num_cached += is_cached
        self.tell(self._names[number])

    def tell(self, name: str) -> None:
        """Says how far all is, and what is in work."""
        if self._on_progress is not None:
            self._on_progress(
                Progress(
                    done=len(self._results),
                    total=len(self._names),
                    name=name,
                    num_cached=self._num_cached,
                    left_s=self._left_s(),
                )
            )

    def results(self) -> list[Price | Failure]:
        """All of them, in the order of the programs."""
        return [self._results[number] for number in range(len(self._names))]

    def _left_s(self) -> float | None:
        num_new = len(self._results) - self._num_cached
        num_left = len(self._names) - len(self._results)
        if num_left == 0:
            return 0.0
        return (time.monotonic() - self._start_s) / num_new * num_left if num_new else None
