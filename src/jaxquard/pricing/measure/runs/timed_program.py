"""One compiled program with its inputs and the times of its runs."""

import statistics
import time
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxquard.pricing.program.lower_program import program_donations
from jaxquard.pricing.program.sharded_program import ShardedProgram
from jaxquard.pricing.values.make_values import make_array
from jaxquard.pricing.values.read_ranges import read_ranges


@dataclass(slots=True)
class RunSeries:
    """Runs in a row, the first one first, and whether they were ended before their time."""

    times_s: list[float] = field(default_factory=list)
    was_stopped_early: bool = False


class TimedProgram:
    """A program that is run again and again.

    What a run donates, the next one gets back: the output that reused it, or a new array.

    Args:
        shared: inputs that programs on the mesh share, as none of them donates them; receives those of this one.

    Attributes:
        series: the runs that count; a new series forgets those before.
    """

    def __init__(self, program: ShardedProgram, compiled: Any, *, mesh: Mesh, shared: dict[Any, jax.Array]) -> None:
        self._compiled, self._mesh = compiled, mesh
        closed: Any = program.jaxpr
        self._types = tuple(zip(closed.in_avals, program.in_specs, read_ranges(closed.jaxpr), strict=True))
        self._donated = program_donations(program)
        self._inputs = [
            self._make(position) if position in self._donated else self._share(position, shared)
            for position in range(len(self._types))
        ]
        self._successors = self._find_successors(closed.out_avals)
        self._fresh = [position for position in program.fresh if not _is_key(closed.in_avals[position])]
        self._batch: dict[int, np.ndarray] = {}
        self.series = RunSeries()

    def run(self, label: str = "jaxquard run") -> float:
        """The seconds of one run, which has the label in a trace."""
        jax.block_until_ready(self._inputs)
        with jax.profiler.TraceAnnotation(label):
            start_s = time.perf_counter()
            outputs = self._compiled(*self._inputs)
            jax.block_until_ready(outputs)
            time_s = time.perf_counter() - start_s
        self._renew(outputs)
        return time_s

    def run_step(self) -> float:
        """The seconds of one step of a training loop: the batch is brought from the host, then the program runs."""
        jax.block_until_ready(self._inputs)
        if not self._batch:
            self._batch = {position: np.array(self._inputs[position]) for position in self._fresh}
        start_s = time.perf_counter()
        for position, array in self._batch.items():
            self._inputs[position] = jax.device_put(array, NamedSharding(self._mesh, self._types[position][1]))
        outputs = self._compiled(*self._inputs)
        jax.block_until_ready(outputs)
        time_s = time.perf_counter() - start_s
        self._renew(outputs)
        return time_s

    @property
    def text(self) -> str:
        """The compiled program's HLO."""
        return self._compiled.as_text()

    def start_series(self) -> None:
        """From here on, other runs count."""
        self.series = RunSeries()

    @property
    def times_s(self) -> list[float]:
        """Seconds of all runs of the series, the first one first."""
        return self.series.times_s

    @property
    def was_stopped_early(self) -> bool:
        """True once it is stopped early."""
        return self.series.was_stopped_early

    @property
    def warm_s(self) -> float:
        """The minimum time so far; the first run counts only as long as it is the only one."""
        return min(self.times_s[1:] or self.times_s)

    def minimum_s(self, num_warmups: int) -> float:
        """The minimum time after so many runs, or what is known if there were no more."""
        counted = self.times_s[num_warmups:]
        return min(counted) if counted else self.warm_s

    def median_s(self, num_warmups: int) -> float:
        """The median time after so many runs, or what is known if there were no more."""
        counted = self.times_s[num_warmups:]
        return statistics.median(counted) if counted else self.warm_s

    def _find_successors(self, out_avals: Any) -> dict[int, int]:
        """For each donated input, the output that can follow it."""
        free = list(enumerate(zip(out_avals, self._compiled.output_shardings, strict=True)))
        found = {}
        for position in self._donated:
            aval, spec, _ = self._types[position]
            sharding = NamedSharding(self._mesh, spec)
            for entry in free:
                output, (out_aval, out_sharding) = entry
                is_alike = (out_aval.shape, out_aval.dtype) == (aval.shape, aval.dtype)
                if is_alike and out_sharding.is_equivalent_to(sharding, len(aval.shape)):
                    found[position] = output
                    free.remove(entry)
                    break
        return found

    def _renew(self, outputs: Any) -> None:
        for position in self._donated:
            if self._inputs[position].is_deleted():
                output = self._successors.get(position)
                self._inputs[position] = self._make(position) if output is None else outputs[output]

    def _make(self, position: int) -> jax.Array:
        aval, spec, values = self._types[position]
        return make_array(aval, NamedSharding(self._mesh, spec), values)

    def _share(self, position: int, shared: dict[Any, jax.Array]) -> jax.Array:
        aval, spec, values = self._types[position]
        key = aval.shape, aval.dtype, spec, values
        if key not in shared:
            shared[key] = self._make(position)
        return shared[key]


def _is_key(aval: Any) -> bool:
    """Returns true for random keys, which have no array on the host."""
    return jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key)
