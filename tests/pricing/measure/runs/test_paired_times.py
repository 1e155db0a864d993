"""Times of candidates from runs side by side; made-up noise."""

import numpy as np
import pytest

from jaxquard.pricing.measure.runs.paired_times import paired_errors, paired_times

TRUE_S = np.array([0.100, 0.103, 0.110, 0.125])
# Odd and even numbers of programs; the best is 3 % ahead of the next.
FIELDS = (TRUE_S[:3], TRUE_S, np.array([*TRUE_S, 0.104]), np.array([*TRUE_S, 0.104, 0.105, 0.106]))


def noisy_runs(seed, *, num_runs=40, true_s=TRUE_S):
    """All suffer alike from what lasts, each alone from what does not; now and then one has luck."""
    rng = np.random.default_rng(seed)
    shared = rng.gamma(2.0, 0.15, num_runs)
    own = rng.gamma(2.0, 0.03, (len(true_s), num_runs))
    luck = np.where(rng.random((len(true_s), num_runs)) < 0.02, 0.85, 1.0)
    return true_s[:, None] * (1 + shared) * (1 + own) * luck


def test_quiet_programs_take_what_each_run_takes():
    assert paired_times([[0.1] * 5, [0.2] * 5]) == pytest.approx([0.1, 0.2])


def test_one_alone_takes_its_minimum():
    assert paired_times([[0.3, 0.1, 0.2]]) == pytest.approx([0.1])


def test_none_at_all():
    assert paired_times([]) == []


def test_a_slow_machine_slows_no_program_more_than_others():
    pace = np.array([1, 3, 1.5, 2, 1.2])
    assert paired_times([0.1 * pace, 0.15 * pace]) == pytest.approx([0.1, 0.15])


def test_one_lucky_run_makes_no_winner():
    slower = [0.12] * 9 + [0.08]
    faster = [0.10] * 10
    first, second = paired_times([slower, faster])
    assert first / second == pytest.approx(1.2)
    assert min(slower) < min(faster)


def test_the_level_is_that_of_the_fastest_runs():
    runs = noisy_runs(0)
    assert np.log(paired_times(runs)).mean() == pytest.approx(np.log(runs.min(axis=1)).mean())


@pytest.mark.thin(2)
@pytest.mark.parametrize("true_s", FIELDS, ids=len)
def test_ratios_wander_less_than_those_of_fastest_runs(true_s):
    def wander(estimates):
        return np.log(estimates / np.exp(np.log(estimates).mean(axis=1, keepdims=True)) / true_s).std(axis=0).mean()

    found = np.array([paired_times(noisy_runs(seed, true_s=true_s)) for seed in range(200)])
    minima = np.array([noisy_runs(seed, true_s=true_s).min(axis=1) for seed in range(200)])
    assert wander(found) < 0.4 * wander(minima)
    assert (found.argmin(axis=1) == 0).mean() > 0.95


@pytest.mark.parametrize("true_s", FIELDS, ids=len)
def test_no_two_of_different_speed_come_out_as_equal(true_s):
    found = np.array([paired_times(noisy_runs(seed, true_s=true_s)) for seed in range(200)])
    gaps = np.diff(np.sort(np.log(found), axis=1), axis=1)
    assert (gaps > 0).all()
    relative = np.log(found) - np.log(found).mean(axis=1, keepdims=True)
    assert relative.mean(axis=0) == pytest.approx(np.log(true_s) - np.log(true_s).mean(), abs=0.003)


@pytest.mark.thin(2)
@pytest.mark.parametrize("true_s", FIELDS, ids=len)
def test_errors_are_what_ratios_wander_by(true_s):
    """Over many repetitions; times of neighbouring runs are correlated, so that it is no equality."""
    found = np.array([paired_times(noisy_runs(seed, true_s=true_s)) for seed in range(200)])
    wander = np.log(found / np.exp(np.log(found).mean(axis=1, keepdims=True))).std(axis=0)
    errors = np.array([paired_errors(noisy_runs(seed, true_s=true_s)) for seed in range(200)]).mean(axis=0)
    assert errors == pytest.approx(wander, rel=0.5)
    assert 0.002 < errors.mean() < 0.02


def test_few_runs_have_no_error():
    assert paired_errors([[0.1] * 3] * 3) == [None] * 3
    assert paired_errors([*[[0.1] * 4] * 3, [0.2] * 3]) == [0.0, 0.0, 0.0, None]
    assert paired_errors([]) == []


def test_without_neighbours_there_is_no_error():
    runs = noisy_runs(0)
    assert paired_errors(runs[:1]) == [None]
    assert paired_errors(runs[:2]) == [None, None]
    assert None not in paired_errors(runs[:3])


def test_one_with_fewer_runs_is_compared_with_those_beside_it():
    pace = np.array([2.0, 1.5, 3.0, 1.0, 1.0])
    found = paired_times([0.1 * pace, 0.2 * pace, 0.15 * pace[:3]])
    assert found == pytest.approx([0.1, 0.2, 0.15])
