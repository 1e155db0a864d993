"""The training of `jaxquard demo`: a small GPT on actors, and the same step in one `jax.jit`."""

import contextlib
import importlib.util
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

import jaxquard as jq
from jaxquard._install_hint import install_hint
from jaxquard.errors import InfeasibleError
from jaxquard.ir.timeline import Timeline
from jaxquard.models import gpt
from jaxquard.schedules import Schedule

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A model, its batch and the number of steps; the same on actors and in one jit."""

    schedule: Schedule
    num_layers: int
    num_microbatches: int
    microbatch_size: int
    num_steps: int

    @property
    def config(self) -> gpt.GptConfig:
        return gpt.GptConfig(
            vocab_size=256,
            num_layers=self.num_layers,
            num_heads=4,
            model_dim=128,
            sequence_length=64,
            dtype=jnp.float32,
        )

    @property
    def num_parameters(self) -> int:
        return gpt.num_parameters(self.config)

    def init_state(self, key: Any) -> Any:
        params = gpt.init(key, self.config)
        return {"params": params, "opt": _optimizer().init(params)}

    def step(self, state: Any, batch: Any) -> tuple[Any, Any]:
        """A training step as a user would write it."""

        def microbatch_grads(microbatch: Any) -> tuple[Any, Any]:
            loss, grads = jax.value_and_grad(gpt.loss)(
                state["params"],
                microbatch,
                self.config,
                mark=jq.pipeline_yield,
                num_stages=self.schedule.num_stages,
            )
            return grads, loss

        grads, losses = jq.accumulate_grads(microbatch_grads, self.schedule)(batch)
        updates, opt = _optimizer().update(grads, state["opt"], state["params"])
        params = jax.tree.map(lambda param, update: param + update, state["params"], updates)
        return {"params": params, "opt": opt}, jnp.mean(losses)

    def batch(self) -> Any:
        sizes = {"num_microbatches": self.num_microbatches, "microbatch_size": self.microbatch_size}
        return jax.device_get(gpt.synthetic_batch(jax.random.key(1), self.config, **sizes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The loss and the time of every step; the first one's time includes compiling."""

    losses: tuple[float, ...]
    times_s: tuple[float, ...]
    timeline: Timeline = field(default_factory=lambda: Timeline(num_actors=0, spans=()))

    @property
    def step_time_s(self) -> float:
        """The median step, the first left out if there are more."""
        return float(np.median(self.times_s[1:] or self.times_s))

    def differences(self, other: "Outcome") -> tuple[float, ...]:
        """The difference of the losses of each step, relative to the other's."""
        return tuple(abs(mine - its) / abs(its) for mine, its in zip(self.losses, other.losses, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """The devices that the actors compute on.

    Attributes:
        runtime: "in_process", or "ray" for actors that are processes.
        address: of the Ray cluster to join; None starts Ray here.
    """

    platform: str
    per_actor: int
    num_actors: int
    are_shared: bool = False
    runtime: str = "in_process"
    address: str | None = None

    def __str__(self) -> str:
        kind = "virtual CPU device" if self.platform == "cpu" else f"{self.platform.upper()} device"
        note = ", shared" if self.are_shared else ", each a process on Ray" if self.runtime == "ray" else ""
        return f"{self.per_actor} {kind}{'' if self.per_actor == 1 else 's'}{note}"

    @property
    def cores_note(self) -> str:
        """The reason why virtual devices are not faster than one."""
        cores, devices = os.cpu_count() or 1, self.num_actors * self.per_actor
        if self.platform != "cpu" or self.address is not None or cores >= devices:
            return ""
        return f"{devices} virtual devices share {cores} core{'' if cores == 1 else 's'} here"


def choose_devices(*, num_actors: int, per_actor: int | None, cpu: bool) -> Devices:
    """Chooses the devices of each actor; nothing may have used JAX before."""
    if cpu:
        jax.config.update("jax_platforms", "cpu")
    # Where JAX has started already, it has the devices that it has.
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", max(8, num_actors * (per_actor or 2)))
    platform = jax.default_backend()
    if platform == "cpu":
        return Devices(platform=platform, per_actor=per_actor or 2, num_actors=num_actors)
    # Or a GPU would multiply in TF32, and the losses could differ in the fourth digit.
    jax.config.update("jax_default_matmul_precision", "highest")
    num_devices = len(jax.devices())
    each = per_actor or max(1, num_devices // num_actors)
    return Devices(platform=platform, per_actor=each, num_actors=num_actors, are_shared=num_devices < num_actors * each)


def choose_devices_on_ray(*, num_actors: int, per_actor: int | None, platform: str, address: str | None) -> Devices:
    """Chooses the devices of actors that are processes; this one computes the comparison alone, on its CPU."""
    jax.config.update("jax_platforms", "cpu")
    if platform != "cpu":
        jax.config.update("jax_default_matmul_precision", "highest")
    each = per_actor or (2 if platform == "cpu" else 1)
    return Devices(platform=platform, per_actor=each, num_actors=num_actors, runtime="ray", address=address)


def make_remote_mesh(devices: Devices) -> jq.RemoteMesh:
    """Makes the actors; on Ray their processes are up when this returns."""
    shape = (devices.num_actors,), (devices.per_actor,), ("data",)
    if devices.runtime == "ray":
        return jq.RemoteMesh(*shape, runtime="ray", address=devices.address, platform=devices.platform)
    return jq.RemoteMesh(*shape, share_devices=devices.are_shared)


def train_on_actors(
    training: Training, devices: Devices, *, on_start: Callable[[], None], on_compile: Progress, on_step: Progress
) -> Outcome:
    """Trains on a mesh of actors; the batch is sharded over each actor's devices."""
    with make_remote_mesh(devices) as mesh:
        on_start()
        state = mesh.init(training.init_state, _key())
        step = mesh.distributed(
            training.step,
            in_shardings=(None, PartitionSpec(None, "data")),
            donate_argnums=(0,),
            measure=True,
            progress=on_compile,
        )
        outcome = _train(step, state, training, on_step)
        return replace(outcome, timeline=step.timeline())


def train_in_one_jit(training: Training, *, on_step: Progress) -> Outcome:
    """The same with `jax.jit`, on one device."""
    state = jax.jit(training.init_state)(_key())
    return _train(jax.jit(training.step, donate_argnums=(0,)), state, training, on_step)


def _train(step: Any, state: Any, training: Training, on_step: Progress) -> Outcome:
    batch, losses, times_s = training.batch(), [], []
    for number in range(training.num_steps):
        start_s = time.perf_counter()
        state, loss = step(state, batch)
        losses.append(float(np.asarray(loss)))
        times_s.append(time.perf_counter() - start_s)
        on_step(number + 1, training.num_steps, f"loss {losses[-1]:.4f}")
    return Outcome(losses=tuple(losses), times_s=tuple(times_s))


def _key() -> Any:
    """The generator of which XLA compiles the draws fastest: less than half the time of the default."""
    return jax.random.key(0, impl="rbg")


def require_optax() -> None:
    """Refuses to begin without optax, which jaxquard itself does not need."""
    if importlib.util.find_spec("optax") is None:
        raise InfeasibleError(f"the demo needs optax, which is not installed. {install_hint('demo')}")


def require_ray() -> None:
    """Refuses to begin without Ray."""
    if importlib.util.find_spec("ray") is None:
        raise InfeasibleError(f"--runtime ray needs Ray, which is not installed. {install_hint('ray')}")


def _optimizer() -> Any:
    import optax

    return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-3))
