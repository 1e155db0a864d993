"""The sets of constants that the band of every headline is taken over.

The authors' public code has two measured sets: "simulation", of which the figures of sections 5.1 and 5.2 are made,
and "main", of the real 4x4 mesh of section 5.3. What it leaves open is whether a SendRecv uses a link one way or both,
and whether those of a chain are launched one by one or together; Wang, Cannon and the 1D baselines depend on both. A
third set is fitted to the headlines; that it meets some of them proves nothing: it stands beside the band, not in it.

Ours launches each SendRecv, since Wang "has extra launch overhead to call multiple SendRecv operations" (5.1.2). A
broadcast is one operation of which each stage is synchronised (2.3.3), and so it is in the authors' code, with the
constants of AllGather; what `gemm` runs, and `autotune` prices, is a permute for each stage.
"""

from dataclasses import dataclass, replace

from jaxquard.cluster import Cluster, load_cluster

SIMULATION, MAIN, FITTED = "simulation", "main", "fitted"
_PRESETS = {SIMULATION: "tpu-v4-simulation", MAIN: "tpu-v4-main", FITTED: "tpu-v4-fitted"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantSet:
    """A cluster and where its numbers come from."""

    name: str
    is_bidirectional: bool
    launches_each_permute: bool
    cluster: Cluster

    @property
    def is_fitted(self) -> bool:
        return self.name == FITTED

    @property
    def ways(self) -> str:
        """The way in which a SendRecv uses the links of a ring."""
        return "both ways" if self.is_bidirectional else "one way"

    @property
    def launches(self) -> str:
        """The launches of a chain of SendRecvs."""
        return "a launch each" if self.launches_each_permute else "one launch"

    @property
    def sendrecv(self) -> str:
        """The assumptions about SendRecv."""
        return f"{self.ways}, {self.launches}"

    @property
    def label(self) -> str:
        return f"{self.name}, SendRecv {self.sendrecv}"


def constant_set(name: str, *, is_bidirectional: bool, launches_each_permute: bool = True) -> ConstantSet:
    """Returns a set of constants by its name."""
    cluster = load_cluster(_PRESETS[name])
    network = replace(
        cluster.network,
        is_bidirectional=is_bidirectional,
        launches_each_permute=launches_each_permute,
        has_broadcast=True,
    )
    return ConstantSet(
        name=name,
        is_bidirectional=is_bidirectional,
        launches_each_permute=launches_each_permute,
        cluster=replace(cluster, network=network),
    )


def sendrecv_sets(name: str) -> tuple[ConstantSet, ...]:
    """Returns a set of constants under each assumption about SendRecv, ours first."""
    return tuple(
        constant_set(name, is_bidirectional=both, launches_each_permute=each)
        for both in (True, False)
        for each in (True, False)
    )


def constant_sets() -> tuple[ConstantSet, ...]:
    """All of them; the first is the one that the figures are drawn with."""
    return tuple(one for name in _PRESETS for one in sendrecv_sets(name))
