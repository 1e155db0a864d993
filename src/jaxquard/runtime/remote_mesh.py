"""`RemoteMesh`: the actors, each with its own mesh of devices."""

import functools
import warnings
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh

from jaxquard.errors import MeshError
from jaxquard.runtime.distributed import DistributedStep, StepOptions
from jaxquard.runtime.engine import Engine
from jaxquard.runtime.in_process.devices import find_devices
from jaxquard.runtime.in_process.engine import InProcessEngine
from jaxquard.runtime.initial_state import Initialisation

RUNTIMES = ("in_process", "ray")
_TRANSPORTS = ("stream", "transfer", "collective")
_HEARTBEAT_TIMEOUT_S = 10.0
_START_TIMEOUT_S = 120.0


class RemoteMesh:
    """Actors that run the stages of a pipeline, each on a mesh of devices.

    In one process: on CPU every actor gets the virtual devices that it needs; on a GPU or TPU the actors take the
    devices of this process in order, `prod(spmd_mesh)` each, or share them.

    With `runtime="ray"` every actor is a process, here or on other hosts. This process needs no accelerator then.

    Args:
        shape: the number of actors, as a tuple of one: `(4,)`.
        spmd_mesh: the shape of each actor's own mesh, over which its arrays are sharded.
        spmd_axis_names: the names of its axes, for `PartitionSpec`s.
        spmd_axis_types: the `jax.sharding.AxisType` of its axes, one for each or one for all. By default all are
            `Auto`: the compiler chooses shardings between the user's constraints. With `Explicit` they are in the
            types of values, as under `jax.set_mesh`: the step is traced so, and `jax.sharding.reshard` works in it.
        runtime: "in_process": the actors are threads of this process. "ray": they are processes.
        devices: in one process, the devices to use, in order; by default `jax.devices()`.
        share_devices: in one process, lets several actors use the same devices when there are not enough.
        address: on Ray, the cluster to join: "ray://head:10001", "head:6379" or "auto". By default the Ray that this
            process is connected to; if it is not, one is started here, on loopback, and ends with the mesh.
        platform: on Ray, "cpu", "gpu" or "tpu"; by default GPUs if the cluster has any, else TPUs, else CPUs.
        processes_per_actor: on Ray, the number of processes that each actor's mesh spans: more than one for actors
            that are larger than a host.
        transport: on Ray, the transport of tensors between actors: "stream" (connections that only this mesh can
            open), "transfer" (`jax.experimental.transfer`) or "collective" (NCCL on GPUs, gloo on CPUs).
            docs/security.md says what the last two leave open.
        heartbeat_timeout_s: on Ray, the time without a heartbeat after which a process counts as lost; 10 s by default.
        start_timeout_s: on Ray, the time that Ray itself, and then the actors, may take to start; 120 s by default.
            Within it, a start of Ray that fails is tried again. It holds for `restart` too.
        silence_limit_s: the old name of `heartbeat_timeout_s`; deprecated.

    Raises:
        MeshError: if the arguments do not fit together, there are too few devices or hosts, Ray is missing or nothing
            answers at the address.

    Example:
        >>> def loss(params, x):
        ...     hidden = jq.pipeline_yield(jnp.tanh(x @ params["first"]))
        ...     return jnp.mean((hidden @ params["second"]) ** 2)
        >>> def train_step(params, batch):
        ...     gradients = jq.accumulate_grads(lambda x: jax.grad(loss)(params, x), jq.schedules.OneFOneB(2))
        ...     return jax.tree.map(lambda param, grad: param - 0.1 * grad, params, gradients(batch))
        >>> params = {"first": jnp.ones((4, 8)), "second": jnp.ones((8, 2))}
        >>> batch = jnp.ones((6, 3, 4))  # 6 microbatches of 3 rows
        >>> with jq.RemoteMesh((2,)) as mesh:  # 2 actors
        ...     step = mesh.distributed(train_step)
        ...     updated = step(params, batch)  # each stage on its own actor
        ...     np.testing.assert_allclose(updated["first"], jax.jit(train_step)(params, batch)["first"], rtol=1e-5)
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        spmd_mesh: tuple[int, ...] = (1,),
        spmd_axis_names: Sequence[str] | None = None,
        *,
        spmd_axis_types: AxisType | Sequence[AxisType] | None = None,
        runtime: str = "in_process",
        devices: Sequence[jax.Device] | None = None,
        share_devices: bool = False,
        address: str | None = None,
        platform: str | None = None,
        processes_per_actor: int = 1,
        transport: str = "stream",
        heartbeat_timeout_s: float | None = None,
        start_timeout_s: float | None = None,
        silence_limit_s: float | None = None,
    ) -> None:
        if silence_limit_s is not None:
            heartbeat_timeout_s = _renamed(silence_limit_s, heartbeat_timeout_s)
        if runtime not in RUNTIMES:
            raise MeshError(f"runtime={runtime!r} is not known. Use one of: {', '.join(map(repr, RUNTIMES))}.")
        self.shape = _checked_shape(shape, "shape")
        self.spmd_shape = _checked_shape(spmd_mesh, "spmd_mesh")
        self.spmd_axis_names = _axis_names(self.spmd_shape, spmd_axis_names)
        if len(self.shape) != 1:
            raise MeshError(f"shape={shape!r} has {len(self.shape)} dims; give the number of actors: (4,).")
        self.spmd_axis_types = _axis_types(self.spmd_shape, spmd_axis_types)
        self.abstract_mesh = AbstractMesh(self.spmd_shape, self.spmd_axis_names, axis_types=self.spmd_axis_types)
        if runtime == "ray":
            _check_unused(runtime, devices=devices, share_devices=share_devices or None)
            limit_s = _HEARTBEAT_TIMEOUT_S if heartbeat_timeout_s is None else heartbeat_timeout_s
            start_s = _START_TIMEOUT_S if start_timeout_s is None else start_timeout_s
            _check_ray_options(transport, processes_per_actor, heartbeat_timeout_s=limit_s, start_timeout_s=start_s)
            # A third of what importing RemoteMesh would load; actors in this process need none of it.
            from jaxquard.runtime.ray.controller.start_engine import start_engine

            self.engine: Engine = start_engine(
                num_actors=self.num_actors,
                mesh=self.abstract_mesh,
                address=address,
                processes_per_actor=processes_per_actor,
                platform=platform,
                transport=transport,
                heartbeat_timeout_s=limit_s,
                start_timeout_s=start_s,
            )
            return
        _check_unused(
            runtime,
            address=address,
            platform=platform,
            processes_per_actor=None if processes_per_actor == 1 else processes_per_actor,
            transport=None if transport == "stream" else transport,
            heartbeat_timeout_s=heartbeat_timeout_s,
            start_timeout_s=start_timeout_s,
        )
        per_actor = find_devices(self.num_actors, prod(self.spmd_shape), devices, share_devices)
        meshes = [
            Mesh(np.array(owned).reshape(self.spmd_shape), self.spmd_axis_names, axis_types=self.spmd_axis_types)
            for owned in per_actor
        ]
        self.abstract_mesh = _common_mesh(meshes)
        self.engine = InProcessEngine(meshes)

    @property
    def num_actors(self) -> int:
        return self.shape[0]

    @property
    def meshes(self) -> tuple[Mesh, ...]:
        """The mesh of each actor, in one process."""
        if not isinstance(self.engine, InProcessEngine):
            raise MeshError(
                "the actors are other processes, and so are their devices. In shardings, use PartitionSpecs, or "
                "NamedShardings on mesh.abstract_mesh."
            )
        return self.engine.meshes

    def distributed(
        self,
        fn: Callable[..., Any],
        *,
        in_shardings: Any = None,
        out_shardings: Any = None,
        donate_argnums: int | Sequence[int] = (),
        donate_argnames: str | Sequence[str] = (),
        static_argnums: int | Sequence[int] = (),
        static_argnames: str | Sequence[str] = (),
        measure: bool = False,
        progress: Callable[[int, int, str], None] | None = None,
    ) -> DistributedStep:
        """Distributes a training step over the actors; the counterpart of `jax.jit`.

        Args:
            fn: a function of pytrees that runs `accumulate_grads`.
            in_shardings: for each argument a pytree prefix of `PartitionSpec`s or `NamedSharding`s on
                the axes of the actors' meshes; None leaves an argument whole.
            out_shardings: the same for the results; by default state is returned as it came.
            donate_argnums: arguments that the step donates.
            donate_argnames: the same, by name.
            static_argnums: arguments that are part of the code; they must be hashable.
            static_argnames: the same, by name.
            measure: records when every task runs, for `step.timeline()`.
            progress: called with (done, total, name) while tasks are compiled.
        """
        options = StepOptions(
            in_shardings=in_shardings,
            out_shardings=out_shardings,
            donate_argnums=_tuple_of(donate_argnums),
            donate_argnames=_tuple_of(donate_argnames),
            static_argnums=_tuple_of(static_argnums),
            static_argnames=_tuple_of(static_argnames),
            progress=progress,
        )
        return DistributedStep(fn, mesh=self, options=options, measure=measure)

    def init(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Builds state on the actors, each its own part.

        Nothing is computed yet: the first distributed step that takes the state knows where every
        leaf belongs and how it is sharded, and then each actor computes its own leaves.

        Args:
            fn: a function that returns the state, such as one that draws parameters from a key.
            *args: its arguments: arrays, traced as under `jax.jit`.
            **kwargs: more of them, passed as they are: configurations, sizes.

        Returns:
            The state, as `RemoteArray`s.
        """
        return Initialisation.trace(functools.partial(fn, **kwargs), args, mesh=self).arrays()

    def restart(self) -> tuple[int, ...]:
        """Starts lost actors again, compiles their tasks and connects them; returns which they were.

        It asks every actor first: one that died a moment ago, or dies meanwhile, is found; one that is frozen after
        `heartbeat_timeout_s`. If Ray itself is gone, it is started anew, or the cluster joined again, and all actors
        are lost.

        The state that they held is lost: restore it from a checkpoint. That of the others is still there. In one
        process no actor is ever lost, and this does nothing.

        Raises:
            MeshError: if there is no cluster any more, or an actor does not start.
            ActorFailed: if actors are lost again and again meanwhile.
        """
        return self.engine.restart()

    def close(self) -> None:
        """Ends the actors, and Ray if it was started for them.

        In one process, results that are there can still be read; with actors that are processes, they are gone.
        """
        self.engine.close()

    def __enter__(self) -> "RemoteMesh":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        axes = ", ".join(f"{name}={size}" for name, size in zip(self.spmd_axis_names, self.spmd_shape, strict=True))
        return f"RemoteMesh({self.num_actors} actors, each {axes})"


def _check_unused(runtime: str, **options: Any) -> None:
    for name, value in options.items():
        if value is not None:
            raise MeshError(f"{name}={value!r} has no meaning with runtime={runtime!r}. Leave it out.")


def _check_ray_options(transport: str, processes_per_actor: Any, **timeouts_s: Any) -> None:
    if transport not in _TRANSPORTS:
        raise MeshError(f"transport={transport!r} is not known. Use one of: {', '.join(map(repr, _TRANSPORTS))}.")
    if not isinstance(processes_per_actor, int) or processes_per_actor < 1:
        raise MeshError(f"processes_per_actor={processes_per_actor!r} must be a whole number, 1 or more.")
    for name, value in timeouts_s.items():
        if not isinstance(value, int | float) or not value > 0:
            raise MeshError(f"{name}={value!r} must be a number of seconds, more than 0.")


def _renamed(silence_limit_s: float, heartbeat_timeout_s: float | None) -> float:
    if heartbeat_timeout_s is not None:
        raise MeshError("silence_limit_s is the old name of heartbeat_timeout_s. Give the new one alone.")
    warnings.warn("silence_limit_s is now called heartbeat_timeout_s. Use that name.", DeprecationWarning, stacklevel=3)
    return silence_limit_s


def _tuple_of(value: Any) -> tuple[Any, ...]:
    return (value,) if isinstance(value, int | str) else tuple(value)


def _checked_shape(shape: Any, name: str) -> tuple[int, ...]:
    sizes = (shape,) if isinstance(shape, int) else tuple(shape)
    if not sizes or any(not isinstance(size, int) or size < 1 for size in sizes):
        raise MeshError(f"{name}={shape!r} must be a tuple of whole numbers, 1 or more.")
    return sizes


def _axis_names(shape: tuple[int, ...], names: Sequence[str] | None) -> tuple[str, ...]:
    if names is None:
        return ("data", "model")[: len(shape)] if len(shape) <= 2 else tuple(f"axis{i}" for i in range(len(shape)))
    names = (names,) if isinstance(names, str) else tuple(names)
    if len(names) != len(shape) or len(set(names)) != len(names):
        raise MeshError(
            f"spmd_axis_names={names!r} must name the {len(shape)} axes of spmd_mesh={shape!r}, each differently."
        )
    return names


def _axis_types(shape: tuple[int, ...], types: AxisType | Sequence[AxisType] | None) -> tuple[AxisType, ...]:
    given = AxisType.Auto if types is None else types
    found = (given,) * len(shape) if isinstance(given, AxisType) else tuple(given)
    allowed = (AxisType.Auto, AxisType.Explicit)
    if len(found) != len(shape) or any(kind not in allowed for kind in found):
        raise MeshError(
            f"spmd_axis_types={types!r} must give the {len(shape)} axes of spmd_mesh={shape!r} a type each: "
            "jax.sharding.AxisType.Auto or .Explicit. Inside jax.shard_map they are Manual by themselves."
        )
    return found


def _common_mesh(meshes: Sequence[Mesh]) -> AbstractMesh:
    """Returns the mesh that stands for any actor's: steps are traced for it.

    Types with explicit axes name it, so it must be exactly that of every actor's devices.
    """
    found = meshes[0].abstract_mesh
    for mesh in meshes:
        if mesh.abstract_mesh != found and AxisType.Explicit in mesh.axis_types:
            kinds = sorted({mesh.devices.flat[0].device_kind for mesh in meshes})
            raise MeshError(
                f"the actors have devices of several kinds ({', '.join(kinds)}), for which explicit axes have no "
                "common type. Use devices of one kind, or spmd_axis_types=AxisType.Auto."
            )
    return found
