"""What the time of a pricer went into."""

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Seconds over all calls of a pricer; the first three do not overlap, and add up to nearly all that a caller waits.

    Attributes:
        lowering_s: making StableHLO of programs.
        compiling_s: waiting for compilers.
        running_s: running programs, with their inputs, warm-ups and profiled runs.
        compile_work_s: what the compilers took, added up: in processes, the processor's time; else by the clock. More
            than `compiling_s` where some work at a time, or while programs run. A compiler that works alone may use
            several cores and take less than its part of this.

    Example:
        >>> mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> w = jax.ShapeDtypeStruct((64, 64), jnp.float32)
        >>> program = jq.pricing.ShardedProgram(
        ...     name="x @ w",
        ...     jaxpr=jax.make_jaxpr(jnp.matmul)(w, w),
        ...     in_specs=(jax.P("x"), jax.P()),
        ...     out_specs=(jax.P("x"),),
        ... )
        >>> with jq.pricing.MeasuredPricer(mesh, num_runs=2, max_runs=2, cache=None) as pricer:
        ...     price = pricer.price(program)
        ...     pricer.spent.running_s > 0
        True
    """

    lowering_s: float = 0.0
    compiling_s: float = 0.0
    running_s: float = 0.0
    compile_work_s: float = 0.0


class Meter:
    """Adds up what is spent; compilers may tell of their work from threads."""

    def __init__(self) -> None:
        self._sums_s: dict[str, float] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def during(self, part: Literal["lowering_s", "compiling_s", "running_s"]) -> Iterator[None]:
        """Counts what happens within, however it ends."""
        start_s = time.perf_counter()
        try:
            yield
        finally:
            self._add(part, time.perf_counter() - start_s)

    def add_compile_work(self, time_s: float) -> None:
        """Counts what one compiler took for one program."""
        self._add("compile_work_s", time_s)

    @property
    def spent(self) -> Spent:
        """The sums so far."""
        with self._lock:
            return Spent(**self._sums_s)

    def _add(self, part: str, time_s: float) -> None:
        with self._lock:
            self._sums_s[part] = self._sums_s.get(part, 0.0) + time_s
