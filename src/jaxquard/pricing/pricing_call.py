"""One call of a pricer: its programs, equal ones once, and what becomes of them.

What has a price on disk is settled at once. A backend takes the other programs from `jobs`, which lowers them one by
one as they are asked for, and settles each with a price or a failure.

    program  --fingerprint-->  cheap key  --alias on disk-->  price
       |
     lower  --text-->  key  --on disk-->  price
       |
     a job for the backend
"""

import math
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxquard.pricing.cache import PriceCache
from jaxquard.pricing.end_of_time import check_time
from jaxquard.pricing.outcomes import BestTimes, Meter, failure_of
from jaxquard.pricing.price import Failure, FailureReason, OnProgress, Price, Progress
from jaxquard.pricing.program.fingerprint import Fingerprints, combine_keys
from jaxquard.pricing.program.sharded_program import ShardedProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class PricingJob:
    """A program to price.

    Attributes:
        numbers: its places in the call; equal programs are priced once.
        quick_key: the cheap key of its price; None if there is none.
        lowered: what its backend compiles.
        text_key: of what it lowers to.
    """

    numbers: tuple[int, ...]
    program: ShardedProgram
    group: Hashable
    quick_key: str | None
    lowered: Any = None
    text_key: str = ""


class PricingCall:
    """The programs of a call and their results so far.

    Args:
        lower: returns what a program lowers to, and a key that no other program has.
        environment: a key of all else that decides a price.
        is_one_moment: times of different days say little of programs that are close: all prices come from disk, from a
            call with the same programs, or all are new. Programs without a cheap key have new ones.
        check: turns the price of a program, by its name, into a failure where it must be one.
        end_s: of the time for it, by `time.monotonic`.
    """

    def __init__(
        self,
        programs: Sequence[ShardedProgram],
        groups: Sequence[Hashable] | None,
        *,
        lower: Callable[[ShardedProgram], tuple[Any, str]],
        environment: str,
        cache: PriceCache | None,
        meter: Meter,
        on_progress: OnProgress | None,
        is_one_moment: bool = False,
        check: Callable[[str, Price], Price | Failure] = lambda name, price: price,
        end_s: float = math.inf,
    ) -> None:
        self.end_s, self.meter, self.best = end_s, meter, BestTimes()
        self._names = [program.name for program in programs]
        self._lower, self._environment, self._check, self._on_progress = lower, environment, check, on_progress
        self._cache, self._finds = cache, cache is not None
        self._results: dict[int, Price | Failure] = {}
        self._num_cached = 0
        self._start_s = time.monotonic()
        if programs:
            self.report(self._names[0])
        fingerprints = Fingerprints()
        keys = [fingerprints.key(program) for program in programs]
        if is_one_moment:
            self._find_one_moment([key for key in keys if key is not None], len(programs))
        self._missing = self._find_missing(programs, [None] * len(programs) if groups is None else groups, keys)

    @property
    def num_missing(self) -> int:
        """The programs that had no price on disk."""
        return len(self._missing)

    def jobs(self, *, end_s: float | None = None) -> Iterator[PricingJob]:
        """Yields lowered programs as they are asked for; what fails, or has a price after all, is settled.

        Args:
            end_s: an earlier end, after which nothing is lowered.
        """
        for job in self._missing:
            try:
                check_time(self.end_s if end_s is None else end_s)
                with self.meter.during("lowering_s"):
                    lowered, text_key = self._lower(job.program)
            except Exception as error:  # A candidate that makes no sense to JAX; the others may.
                self.fail(job, FailureReason.NO_LOWERING, error)
                continue
            made = replace(job, lowered=lowered, text_key=text_key)
            known = self._cache.find(self._key(made)) if self._finds and self._cache is not None else None
            if known is None:
                yield made
            else:
                self._add_alias(made)
                self._note(made, known, is_cached=True)

    def settle(self, job: PricingJob, result: Price | Failure, *, keep: bool = True) -> None:
        """Writes down a result; a price goes to the disk, unless it is not whole."""
        if isinstance(result, Price) and keep and self._cache is not None:
            self._cache.store(self._key(job), result, name=job.program.name)
            self._add_alias(job)
        self._note(job, result)

    def fail(self, job: PricingJob, reason: FailureReason, error: Exception) -> None:
        """Writes down an error; the reason holds unless the error says more."""
        self._note(job, failure_of(job.program.name, reason, error))

    def is_settled(self, job: PricingJob) -> bool:
        return job.numbers[0] in self._results

    def report(self, name: str) -> None:
        """Reports progress, with what is in work."""
        if self._on_progress is not None:
            done, total = len(self._results), len(self._names)
            self._on_progress(
                Progress(done=done, total=total, name=name, num_cached=self._num_cached, left_s=self._left_s())
            )

    def results(self) -> list[Price | Failure]:
        """Returns all of them, in the order of the programs."""
        return [self._results[number] for number in range(len(self._names))]

    def _find_one_moment(self, keys: Sequence[str], num_programs: int) -> None:
        """Makes all programs a part of the key, and finds nothing unless it finds all."""
        self._environment = combine_keys(self._environment, *sorted(keys))
        if len(keys) < num_programs:
            self._cache = None
        self._finds = all(self._find(key) is not None for key in keys)

    def _find(self, key: str | None) -> Price | None:
        """Returns the price under a fingerprint, if it is to be found."""
        if key is None or self._cache is None or not self._finds:
            return None
        return self._cache.find_quickly(combine_keys(self._environment, key))

    def _find_missing(
        self, programs: Sequence[ShardedProgram], groups: Sequence[Hashable], keys: Sequence[str | None]
    ) -> list[PricingJob]:
        missing: dict[Hashable, PricingJob] = {}
        for number, (program, group, key) in enumerate(zip(programs, groups, keys, strict=True)):
            quick_key = None if key is None else combine_keys(self._environment, key)
            job = PricingJob(numbers=(number,), program=program, group=group, quick_key=quick_key)
            if (known := self._find(key)) is not None:
                self._note(job, known, is_cached=True)
                continue
            equal = missing.setdefault(quick_key or number, job)
            if equal is not job:
                missing[quick_key or number] = replace(equal, numbers=(*equal.numbers, number))
        return list(missing.values())

    def _key(self, job: PricingJob) -> str:
        return combine_keys(self._environment, job.text_key)

    def _add_alias(self, job: PricingJob) -> None:
        if self._cache is not None and job.quick_key is not None:
            self._cache.add_alias(job.quick_key, self._key(job))

    def _note(self, job: PricingJob, result: Price | Failure, *, is_cached: bool = False) -> None:
        if isinstance(result, Price):
            self.best.note(job.group, result.time_s)
        for number in job.numbers:
            name = self._names[number]
            self._results[number] = (
                self._check(name, result) if isinstance(result, Price) else replace(result, name=name)
            )
            self._num_cached += is_cached
            self.report(name)

    def _left_s(self) -> float | None:
        num_new, num_left = len(self._results) - self._num_cached, len(self._names) - len(self._results)
        if num_left == 0:
            return 0.0
        return (time.monotonic() - self._start_s) / num_new * num_left if num_new else None
