"""The base of pricers: one program is priced as a batch of one, and what was started ends with the context."""

import abc
import math
from collections.abc import Hashable, Sequence
from typing import Self

from jaxquard.errors import PricingError
from jaxquard.pricing.price import Failure, OnProgress, Price
from jaxquard.pricing.program.sharded_program import ShardedProgram


class BatchPricer(abc.ABC):
    """A pricer that prices batches; `close`, or leaving it as a context, ends what it has started."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027 - not abstract: many pricers start nothing.
        """Ends what it has started; another call starts it anew."""

    def price(self, program: ShardedProgram) -> Price:
        """The price of one program.

        Raises:
            PricingError: if it does not compile, fit or run.
        """
        (result,) = self.price_all([program])
        if isinstance(result, Failure):
            raise PricingError(f"{result}. Take another sharding, or a larger mesh.")
        return result

    def provenance_key(self) -> str | None:
        """Returns a key of all that decides a price beside the program; None if it cannot be said.

        Prices of pricers with the same key are the same, so that tables of them can be kept.
        """
        return None

    def is_lasting(self, failure: Failure) -> bool:
        """Returns true for a failure that another call has as well; memory may be free then, or time left."""
        del failure
        return False

    @abc.abstractmethod
    def price_all(
        self,
        programs: Sequence[ShardedProgram],
        *,
        groups: Sequence[Hashable] | None = None,
        on_progress: OnProgress | None = None,
        end_s: float = math.inf,
    ) -> list[Price | Failure]:
        """The prices of many, in their order; see `Pricer`."""

    def compare(
        self,
        programs: Sequence[ShardedProgram],
        *,
        groups: Sequence[Hashable] | None = None,
        on_progress: OnProgress | None = None,
        end_s: float = math.inf,
    ) -> list[Price | Failure]:
        """The same as `price_all`: where no run is noisy, nothing is gained by a comparison."""
        return self.price_all(programs, groups=groups, on_progress=on_progress, end_s=end_s)
