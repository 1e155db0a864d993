"""Blocks of runs: how many, and what they give."""

import math

from jaxquard.pricing.mock_gpu.time_blocks import BlockBudget, time_blocks


class Clock:
    """A clock that moves when something runs; a run may be slower than the others."""

    def __init__(self, *, run_s, disturbed=()):
        self.now_s, self.num_runs, self.num_waits = 0.0, 0, 0
        self._run_s, self._disturbed = run_s, disturbed

    def run(self):
        self.num_runs += 1
        self.now_s += self._run_s * (3 if self.num_runs in self._disturbed else 1)
        return self.num_runs

    def wait(self, last):
        assert last == self.num_runs
        self.num_waits += 1

    def __call__(self):
        return self.now_s


def blocks(clock, **settings):
    return time_blocks(clock.run, clock.wait, budget=BlockBudget(**settings), clock=clock)


def test_a_block_has_as_many_runs_as_fit_its_time():
    clock = Clock(run_s=0.01)
    times_s = blocks(clock, num_warmups=2, num_blocks=4, block_s=0.05, max_runs=10)
    assert [round(time_s, 6) for time_s in times_s] == [0.01] * 4
    # Two warm-ups, then four blocks of five runs; a block is waited for once.
    assert (clock.num_runs, clock.num_waits) == (2 + 4 * 5, 2 + 4)


def test_short_programs_have_at_most_so_many_runs_and_long_ones_one():
    short, long = Clock(run_s=1e-6), Clock(run_s=3.0)
    blocks(short, num_warmups=1, num_blocks=2, max_blocks=2, max_runs=7)
    blocks(long, num_warmups=1, num_blocks=2, max_blocks=2)
    assert (short.num_runs, long.num_runs) == (1 + 2 * 7, 1 + 2)


def test_noise_asks_for_more_blocks_until_three_agree():
    clock = Clock(run_s=0.2, disturbed=(3, 4, 6))
    times_s = blocks(clock, num_warmups=2, num_blocks=3, max_blocks=10, block_s=0.2)
    assert [round(time_s, 3) for time_s in times_s] == [0.6, 0.6, 0.2, 0.6, 0.2, 0.2]


def test_a_slow_program_has_one_block_and_a_long_one_ends():
    slow, long = Clock(run_s=0.5), Clock(run_s=1.0)
    assert len(blocks(slow, slow_s=0.4)) == 1
    assert len(blocks(long, limit_s=2.5)) == 1
    assert BlockBudget().slow_s == math.inf
