"""The time of an algorithm's steps in closed form (MeshSlice, section 3.2.2).

With l and s the longest of an iteration's loads and stores, c its product, and n iterations:

    pipeline   l + (n - 1) max(l, c, s) + c + s      MeshSlice, SUMMA; Collective with n = 1
    ring       (n - 1) max(l, c, s) + c              Wang, Cannon, 1D: the first shards are in place

before and after which stand the moves that nothing hides.
"""

from .cost_moves import Move
from .cost_steps import Steps


def steps_time_s(steps: Steps) -> float:
    """From the first move to the last."""
    slowest_s = max(_longest_s(steps.loads), steps.compute_s, _longest_s(steps.stores))
    loop_s = (steps.num_iterations - 1) * slowest_s + steps.compute_s
    if not steps.is_ring:
        loop_s += _longest_s(steps.first_loads) + _longest_s(steps.last_stores)
    return sum(_longest_s(phase) for phase in steps.before + steps.after) + loop_s


def _longest_s(moves: tuple[Move, ...]) -> float:
    return max((move.time_s for move in moves), default=0.0)
