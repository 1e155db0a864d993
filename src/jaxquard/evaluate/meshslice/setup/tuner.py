"""Autotunes for the figures, each question once."""

import math
from dataclasses import dataclass, field

from jaxquard.cluster import Cluster
from jaxquard.gemm.autotune.autotune import UNROLLED, autotune
from jaxquard.gemm.autotune.table import Tuning
from jaxquard.gemm.problem import GemmProblem, Stationary

_Question = tuple[GemmProblem, Cluster, int, str, Stationary | None, tuple[int, int] | None, int | None]


@dataclass(slots=True)
class Tuner:
    """Remembers its answers, since figures and headlines ask for the same; memory is no limit, as in the paper."""

    answers: dict[_Question, Tuning] = field(default_factory=dict)

    def tune(
        self,
        problem: GemmProblem,
        cluster: Cluster,
        num_chips: int,
        algorithm: str = "meshslice",
        *,
        stationary: Stationary | None = None,
        mesh_shape: tuple[int, int] | None = None,
        num_slices: int | None = None,
    ) -> Tuning:
        """All meshes of an algorithm, the best first; see `autotune`."""
        question = (problem, cluster, num_chips, algorithm, stationary, mesh_shape, num_slices)
        if question not in self.answers:
            unroll_as = None
            if algorithm in UNROLLED:
                unroll_as = self.tune(problem, cluster, num_chips, stationary=stationary, num_slices=num_slices)
            self.answers[question] = autotune(
                problem,
                cluster,
                num_chips,
                algorithm,
                memory_limit_bytes=math.inf,
                keep=100,
                stationary=stationary,
                mesh_shape=mesh_shape,
                num_slices=num_slices,
                unroll_as=unroll_as,
                method="paper",
            )
        return self.answers[question]
