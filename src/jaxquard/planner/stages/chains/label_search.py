"""The exact search over assignments of segments to stages: labels with dominance, stage by stage.

A label is a way to assign the segments before its position to the stages so far. Of two labels at one position, the one
that is not smaller in anything (the sum of fills, the largest loads, the loads and the memory of actors that get
further stages) can be left out. So can one that, completed at the bounds, is slower than an assignment that is
known. With one stage per actor nothing but fill and load is left, and the labels are few. With several, their number is
limited; if the limit is reached, the best by their bound stay, and the proof is given up.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from jaxquard.planner.stages.chains.dominance import undominated, undominated_pairs
from jaxquard.planner.stages.chains.range_options import ACTIVATION, FIXED, WORKING
from jaxquard.planner.stages.chains.stage_problem import Completions, StageOptions, StageProblem, bound_completions

_ROUNDING = 1 + 1e-12


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPath:
    """An assignment: the option of each stage, and the estimated time."""

    options: tuple[int, ...]
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Labels:
    """Labels after a stage.

    Attributes:
        positions: the first segment that is not assigned.
        fills_s: the sums so far.
        finished_s: the largest load of an actor whose stages are all there.
        stages_s: the largest load of a stage.
        loads_s: of each actor that gets further stages, else 0; without columns if each actor has one stage.
        kept_bytes: the same of fixed bytes and activations, for each row of the profile.
        working_bytes: the same of working bytes.
    """

    positions: Int[np.ndarray, " labels"]
    fills_s: Float[np.ndarray, " labels"]
    finished_s: Float[np.ndarray, " labels"]
    stages_s: Float[np.ndarray, " labels"]
    loads_s: Float[np.ndarray, "labels actors"]
    kept_bytes: Float[np.ndarray, "labels rows"]
    working_bytes: Float[np.ndarray, "labels actors"]
    parents: Int[np.ndarray, " labels"]
    options: Int[np.ndarray, " labels"]

    def __getitem__(self, index: np.ndarray) -> "_Labels":
        return _Labels(**{name: getattr(self, name)[index] for name in self.__slots__})

    def __len__(self) -> int:
        return len(self.positions)


class LabelSearch:
    """One search for the fastest assignments.

    Args:
        known_s: the time of an assignment that is known; slower ones are not looked for.
        max_labels: kept after a stage.
    """

    def __init__(
        self,
        problem: StageProblem,
        completions: Completions | None = None,
        *,
        known_s: float = np.inf,
        max_labels: int = 1000,
    ) -> None:
        self.problem, self.known_s, self.max_labels = problem, known_s * _ROUNDING, max_labels
        self.is_proven = True
        self._completions = bound_completions(problem) if completions is None else completions
        actors = problem.actor_of
        self._is_last = [actor not in actors[stage + 1 :] for stage, actor in enumerate(actors)]
        self._counts = np.bincount(actors)

    def find(self) -> list[FoundPath]:
        """Returns the assignments at the end, the fastest first; one of the minimum time is among them if proven."""
        steps = [self._start()]
        for stage in range(self.problem.num_stages):
            if not len(steps[-1]):
                return []
            steps.append(self._keep(self._expand(steps[-1], stage), stage))
        last = steps[-1]
        times_s = last.fills_s + self.problem.combine(last.finished_s, last.stages_s)
        order = np.argsort(times_s, kind="stable")
        return [FoundPath(options=_path(steps, int(label)), time_s=float(times_s[label])) for label in order]

    def _start(self) -> _Labels:
        problem = self.problem
        num_actors = problem.profile.num_actors if problem.is_looped else 0
        num_rows = len(problem.profile.kept) if problem.is_looped and problem.has_limit else 0
        none = np.zeros(1, dtype=np.int64)
        return _Labels(
            positions=none,
            fills_s=np.zeros(1),
            finished_s=np.zeros(1),
            stages_s=np.zeros(1),
            loads_s=np.zeros((1, num_actors)),
            kept_bytes=np.zeros((1, num_rows)),
            working_bytes=np.zeros((1, num_actors if num_rows else 0)),
            parents=none,
            options=none,
        )

    def _expand(self, labels: _Labels, stage: int) -> _Labels:
        """Continues every label with every option of the stage that begins at its position."""
        own = self.problem.stages[stage]
        firsts, ends = own.bounds[labels.positions], own.bounds[labels.positions + 1]
        parents = np.repeat(np.arange(len(labels)), ends - firsts)
        offsets = np.arange(len(parents)) - np.repeat(np.cumsum(ends - firsts) - (ends - firsts), ends - firsts)
        chosen = firsts[parents] + offsets
        parents, chosen = self._promising(labels, own, parents, chosen, stage)
        grown = labels[parents]
        loads_s, kept, working = grown.loads_s, grown.kept_bytes, grown.working_bytes
        finished_s, load_s = grown.finished_s, own.loads_s[chosen]
        is_kept = np.ones(len(chosen), dtype=bool)
        if self.problem.is_looped:
            actor, is_last = self.problem.actor_of[stage], self._is_last[stage]
            load_s = load_s + loads_s[:, actor]
            loads_s[:, actor] = 0.0 if is_last else load_s
            if self.problem.has_limit:
                is_kept = self._add_memory(kept, working, own.options[chosen], stage)
            finished_s = np.maximum(finished_s, load_s) if is_last else finished_s
        else:
            finished_s = np.maximum(finished_s, load_s)
        expanded = _Labels(
            positions=own.stops[chosen],
            fills_s=grown.fills_s + own.fills_s[chosen],
            finished_s=finished_s,
            stages_s=np.maximum(grown.stages_s, own.loads_s[chosen]),
            loads_s=loads_s,
            kept_bytes=kept,
            working_bytes=working,
            parents=parents,
            options=own.options[chosen],
        )
        return expanded[is_kept]

    def _promising(
        self, labels: _Labels, own: StageOptions, parents: np.ndarray, chosen: np.ndarray, stage: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Leaves out what is too slow by the bounds of a single stage, before anything is copied."""
        stops = own.stops[chosen]
        fills_s = labels.fills_s[parents] + own.fills_s[chosen] + self._completions.fills_s[stage + 1, stops]
        ahead_s = np.maximum(own.loads_s[chosen], self._completions.bottlenecks_s[stage + 1, stops])
        actors_s = np.maximum(labels.finished_s[parents], ahead_s)
        stages_s = np.maximum(labels.stages_s[parents], ahead_s)
        is_kept = fills_s + self.problem.combine(actors_s, stages_s) <= self.known_s
        # An infinite bound: no assignment ends from here.
        is_kept &= np.isfinite(ahead_s)
        return parents[is_kept], chosen[is_kept]

    def _add_memory(self, kept: np.ndarray, working: np.ndarray, options: np.ndarray, stage: int) -> np.ndarray:
        """Adds the memory of the stage to its actor's, in place; returns which labels fit."""
        problem, actor = self.problem, self.problem.actor_of[stage]
        costs, profile = problem.table.costs[options], problem.profile
        rows = np.flatnonzero(profile.kept_actors == actor)
        kept[:, rows] += costs[:, [FIXED]] + costs[:, [ACTIVATION]] * profile.kept[rows, stage]
        working[:, actor] = np.maximum(working[:, actor], costs[:, WORKING])
        fits = kept[:, rows].max(axis=1) + working[:, actor] <= problem.limit_bytes
        if self._is_last[stage]:
            kept[:, rows] = working[:, actor] = 0.0
        return fits

    def _keep(self, labels: _Labels, stage: int) -> _Labels:
        """Leaves out labels that are dominated, or too slow by their bound, or too many."""
        if not self.problem.is_looped:
            return labels[undominated_pairs(labels.positions, labels.finished_s, labels.fills_s)]
        bounds_s = self._bounds_s(labels, stage)
        chosen = np.flatnonzero(bounds_s <= self.known_s)
        chosen = self._best(labels, bounds_s, chosen, stage, 4 * self.max_labels)
        chosen = chosen[self._undominated(labels[chosen])]
        return labels[self._best(labels, bounds_s, chosen, stage, self.max_labels)]

    def _best(
        self, labels: _Labels, bounds_s: np.ndarray, chosen: np.ndarray, stage: int, max_labels: int
    ) -> np.ndarray:
        if len(chosen) <= max_labels:
            return chosen
        self.is_proven = False
        # Among equal bounds, those whose stages so far are the most even.
        placed = np.bincount(self.problem.actor_of[: stage + 1], minlength=len(self._counts))
        share = self._counts / np.maximum(placed, 1)
        projected_s = (labels.loads_s[chosen] * share).max(axis=1)
        fills_s = labels.fills_s[chosen] + self._completions.fills_s[stage + 1, labels.positions[chosen]]
        order = np.argsort(np.maximum(bounds_s[chosen], fills_s + projected_s), kind="stable")
        return np.sort(chosen[order[:max_labels]])

    def _bounds_s(self, labels: _Labels, stage: int) -> np.ndarray:
        """Returns a bound on the time of each label's best completion."""
        later = sorted(set(self.problem.actor_of[stage + 1 :]))
        rests = self._completions
        ahead_s = rests.bottlenecks_s[stage + 1, labels.positions]
        actors_s, stages_s = np.maximum(labels.finished_s, ahead_s), np.maximum(labels.stages_s, ahead_s)
        if later:
            shared_s = labels.loads_s[:, later].sum(axis=1) + rests.loads_s[stage + 1, labels.positions]
            actors_s = np.maximum(actors_s, np.maximum(labels.loads_s.max(axis=1), shared_s / len(later)))
        fills_s = labels.fills_s + rests.fills_s[stage + 1, labels.positions]
        return fills_s + self.problem.combine(actors_s, stages_s)

    def _undominated(self, labels: _Labels) -> np.ndarray:
        costs = np.column_stack(
            [
                labels.fills_s,
                labels.finished_s,
                labels.stages_s,
                labels.loads_s,
                labels.kept_bytes,
                labels.working_bytes,
            ]
        )
        # Actors that have no stage yet, or none to come, have zeros alone.
        is_constant = (costs == costs[:1]).all(axis=0)
        is_constant[0] = False
        costs = costs[:, ~is_constant]
        order = np.argsort(labels.positions, kind="stable")
        firsts = np.flatnonzero(np.diff(labels.positions[order], prepend=-1))
        groups = np.split(order, firsts[1:]) if len(order) else []
        return np.concatenate([np.arange(0), *(group[undominated(costs[group])] for group in groups)])


def _path(steps: list[_Labels], label: int) -> tuple[int, ...]:
    options = []
    for labels in reversed(steps[1:]):
        options.append(int(labels.options[label]))
        label = int(labels.parents[label])
    return tuple(reversed(options))
