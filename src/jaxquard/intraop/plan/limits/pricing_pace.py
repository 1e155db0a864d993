"""Estimates how long pricing takes: by the equations of programs, and by how long earlier ones took."""

import itertools
from collections.abc import Iterable, Sequence

from jaxquard.pricing import ShardedProgram
from jaxquard.pricing.host_cores import num_cores

# Seconds of one core to compile and run a program, and more for each of its equations; of programs on 8 virtual CPUs.
_PROGRAM_S, _EQUATION_S = 1.5, 0.04
# The same of a training loop, as a share: a whole step has many equations, and runs less often.
_LOOP_SHARE = 0.5


def compile_and_run_s(programs: Sequence[ShardedProgram]) -> float:
    """Returns about how long it takes to measure programs on the cores of this host, if nothing else runs there."""
    return equations_s(len(program.jaxpr.jaxpr.eqns) for program in programs)


def equations_s(counts: Iterable[int]) -> float:
    """Returns the same for programs of so many equations each."""
    return sum(map(_of_equations_s, counts)) / num_cores()


def estimate_loops_s(num_equations: int, count: int) -> float:
    """Returns how long it takes to compile so many whole steps of so many equations, and to run them as loops."""
    return count * _LOOP_SHARE * _of_equations_s(num_equations) / num_cores()


def _of_equations_s(count: int) -> float:
    return _PROGRAM_S + _EQUATION_S * count


class PricingPace:
    """The ratio of the time that pricing took to what it should have."""

    def __init__(self) -> None:
        self.num_cores = num_cores()
        self._expected_s = self._spent_s = 0.0

    @property
    def is_known(self) -> bool:
        """True once something was priced."""
        return self._expected_s > 0

    def note(self, programs: Sequence[ShardedProgram], spent_s: float) -> None:
        """Learns from programs that were priced."""
        self._expected_s += compile_and_run_s(programs)
        self._spent_s += spent_s

    def estimate_s(self, programs: Sequence[ShardedProgram]) -> float:
        """Returns how long programs will take."""
        return self._factor * compile_and_run_s(programs)

    def estimate_loops_s(self, num_equations: int, count: int) -> float:
        """Returns how long it takes to compile so many whole steps of so many equations, and to run them as loops."""
        return self._factor * estimate_loops_s(num_equations, count)

    def count_within(self, programs: Sequence[ShardedProgram], left_s: float) -> int:
        """Returns how many of the programs, from the first on, are done in some seconds."""
        return _count_within([self.estimate_s([program]) for program in programs], left_s)

    def count_loops_within(self, programs: Sequence[ShardedProgram], left_s: float) -> int:
        """Returns how many of the programs, from the first on, are compiled and run as loops in some seconds."""
        counts = [len(program.jaxpr.jaxpr.eqns) for program in programs]
        return _count_within([self.estimate_loops_s(count, 1) for count in counts], left_s)

    @property
    def _factor(self) -> float:
        return self._spent_s / self._expected_s if self.is_known else 1.0


def _count_within(times_s: Sequence[float], left_s: float) -> int:
    return sum(total_s <= left_s for total_s in itertools.accumulate(times_s))
