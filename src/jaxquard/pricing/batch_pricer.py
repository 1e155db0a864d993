"""The base of pricers.

`BatchPricer` prices one program as a batch of one, and ends what was started with the context. A `LoweringPricer` has a
backend, a function from lowered programs to prices; keys, equal programs, the cache, progress, the end of the time and
failures are the same for all of them (`PricingCall`).
"""

import abc
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, Self

from jaxquard.errors import PricingError
from jaxquard.pricing.cache import PriceCache
from jaxquard.pricing.outcomes import Meter, TimeBreakdown
from jaxquard.pricing.price import Failure, OnProgress, Price
from jaxquard.pricing.pricing_call import PricingCall
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


class LoweringPricer(BatchPricer):
    """Prices what programs lower to, equal ones once, and keeps prices on disk.

    Args:
        cache: where prices are kept: the user's own folder, another, or nowhere.
    """

    def __init__(self, *, cache: PriceCache | Literal["default"] | None) -> None:
        self._cache = PriceCache() if cache == "default" else cache
        self._meter = Meter()

    @property
    def time_breakdown(self) -> TimeBreakdown:
        """The time of all calls so far, by activity."""
        return self._meter.time_breakdown

    def price_all(
        self,
        programs: Sequence[ShardedProgram],
        *,
        groups: Sequence[Hashable] | None = None,
        on_progress: OnProgress | None = None,
        end_s: float = math.inf,
    ) -> list[Price | Failure]:
        """The prices of many, in their order; see `Pricer`."""
        return self._call(
            programs, groups, self._backend, environment=self._environment(), on_progress=on_progress, end_s=end_s
        )

    @abc.abstractmethod
    def _lower(self, program: ShardedProgram) -> tuple[Any, str]:
        """Returns what a program lowers to, and a key that no other program has."""

    @abc.abstractmethod
    def _environment(self) -> str:
        """Returns a key of all that decides a price beside the program."""

    @abc.abstractmethod
    def _backend(self, call: PricingCall) -> None:
        """Settles the jobs of a call."""

    def _check(self, name: str, price: Price) -> Price | Failure:
        """Returns a price, or why a program of that price fails."""
        del name
        return price

    def _call(
        self,
        programs: Sequence[ShardedProgram],
        groups: Sequence[Hashable] | None,
        backend: Callable[[PricingCall], None],
        *,
        environment: str,
        on_progress: OnProgress | None,
        end_s: float,
        is_one_moment: bool = False,
    ) -> list[Price | Failure]:
        """Prices programs by a backend; whatever ends the call early ends what the pricer has started."""
        try:
            call = PricingCall(
                programs,
                groups,
                lower=self._lower,
                environment=environment,
                cache=self._cache,
                meter=self._meter,
                on_progress=on_progress,
                is_one_moment=is_one_moment,
                check=self._check,
                end_s=end_s,
            )
            backend(call)
        except BaseException:
            self.close()
            raise
        return call.results()
