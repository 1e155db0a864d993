"""The hardware that a plan is for: a description, and the devices if they are at hand."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jaxquard.cluster import Cluster, find_preset, levels_of, load_cluster
from jaxquard.errors import ClusterError, PlanError
from jaxquard.planner.record.plan import Plan
from jaxquard.pricing.model.price_step import RESERVED_SHARE
from jaxquard.runtime.remote_mesh import RUNTIMES, RemoteMesh


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTarget:
    """The hardware of a plan.

    Attributes:
        num_devices: of the plan; at most the cluster's chips.
        has_devices: whether plans can run here.
        runtime: on which they do.
        mesh_options: arguments of `RemoteMesh` that say which devices.
    """

    cluster: Cluster
    num_devices: int
    has_devices: bool
    runtime: str = "in_process"
    mesh_options: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def devices_per_host(self) -> int:
        """The devices that the fastest links join: those of a host, or of a whole torus."""
        return levels_of(self.cluster)[0].size

    @property
    def memory_bytes(self) -> int:
        """The bytes of a device that a step may use."""
        return int(self.cluster.memory.size_bytes * (1 - RESERVED_SHARE))

    def check_plan(self, plan: Plan) -> None:
        """Checks that a plan can run on the devices at hand.

        Raises:
            PlanError: if it is for another cluster.
        """
        if not self.has_devices:
            raise PlanError(
                f"the plan is for {plan.num_devices} devices of {plan.cluster}, which are not here: "
                f"{_devices_text()}. Run it where they are, or plan with devices=jax.devices()."
            )
        if plan.cluster != self.cluster.name:
            raise PlanError(
                f"the plan was made for {plan.cluster}, but this is {self.cluster.name}. Plan for this one, or say "
                f"cluster={plan.cluster!r} and devices={plan.num_devices} to run it here all the same."
            )
        if plan.num_devices > self.num_devices:
            raise PlanError(
                f"the plan is for {plan.num_devices} devices of {plan.cluster}, but there are {self.num_devices} here. "
                "Plan for these."
            )


def find_plan_target(
    *, cluster: Cluster | str | None, devices: Sequence[jax.Device] | int | None, runtime: str
) -> PlanTarget:
    """Finds what to plan for.

    Args:
        cluster: a description, its name or its file; None for what the devices are.
        devices: to run on, or their number; None for all of this process, or of the cluster.

    Raises:
        PlanError: if there is no such number of devices.
        ClusterError: if the cluster is unknown.
    """
    if runtime not in RUNTIMES:
        raise PlanError(f"runtime={runtime!r:.80} is not known. Use one of: {', '.join(map(repr, RUNTIMES))}.")
    described = None if cluster is None else load_cluster(cluster)
    if described is not None and devices is None and runtime == "in_process":
        return PlanTarget(
            cluster=described,
            num_devices=described.num_chips,
            has_devices=_are_here(described),
            mesh_options={},
        )
    found = list(jax.devices()) if devices is None else devices
    is_list = isinstance(found, list | tuple | np.ndarray) and all(hasattr(one, "platform") for one in found)
    if not is_list and (not isinstance(found, int) or isinstance(found, bool)):
        raise PlanError(f"devices={found!r:.80} must be devices of JAX, or their number. Pass jax.devices().")
    num_devices = found if isinstance(found, int) else len(found)
    if num_devices < 1:
        raise PlanError(f"a plan is for at least one device, found {num_devices}. Pass devices=jax.devices().")
    platform = jax.default_backend() if isinstance(found, int) else found[0].platform
    if described is None:
        described = _describe(platform, num_devices, found)
    if num_devices > described.num_chips:
        raise PlanError(
            f"{num_devices} devices were asked for, but {described.name} has {described.num_chips} chips. Name "
            "a larger cluster, or fewer devices."
        )
    options = {} if runtime == "ray" or isinstance(found, int) or platform == "cpu" else {"devices": found}
    return PlanTarget(
        cluster=described, num_devices=num_devices, has_devices=True, runtime=runtime, mesh_options=options
    )


def _are_here(cluster: Cluster) -> bool:
    """Returns true if the devices of this process are those of a cluster; a CPU has any number of virtual ones."""
    device = jax.devices()[0]
    is_cpu = "cpu" in cluster.name
    if device.platform == "cpu" or is_cpu:
        return is_cpu and device.platform == "cpu"
    preset = find_preset(device.device_kind)
    return preset is not None and preset in cluster.name and cluster.num_chips <= len(jax.devices())


def _describe(platform: str, num_devices: int, found: Any) -> Cluster:
    if platform == "cpu":
        return load_cluster(f"cpu-{num_devices}")
    preset = find_preset((jax.devices() if isinstance(found, int) else found)[0].device_kind)
    try:
        return load_cluster(f"{preset}-{num_devices}" if num_devices > 1 else str(preset))
    except ClusterError as error:
        raise PlanError(
            f"no description is known of {num_devices} x {_devices_text()}. Name one with cluster=, or make one with "
            "`jaxquard cluster calibrate`."
        ) from error


def _devices_text() -> str:
    found = jax.devices()
    return f"{len(found)} x {found[0].device_kind}"


def mesh_maker(target: PlanTarget, mesh_options: Mapping[str, Any]) -> Callable[[Plan], RemoteMesh]:
    """Returns a function that starts the actors of a plan.

    Args:
        mesh_options: more arguments of `RemoteMesh`.
    """

    def make(plan: Plan) -> RemoteMesh:
        target.check_plan(plan)
        return RemoteMesh(
            (plan.num_actors,),
            tuple(plan.axes.values()),
            tuple(plan.axes),
            runtime=target.runtime,
            **target.mesh_options,
            **mesh_options,
        )

    return make
