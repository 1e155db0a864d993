"""The answer of a search: a choice for every block of a step, with what it costs, as data that can be saved.

A plan knows the step that it was made for by its fingerprint, and the mesh by the names and sizes of its axes. It is
refused for any other, with what differs.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jaxquard._jax_compat import without_mesh
from jaxquard.errors import ShardingError
from jaxquard.intraop.analyse import Analysis, analyse_step, check_choices
from jaxquard.intraop.layouts import Storage
from jaxquard.intraop.own_buffers import copy_leaf
from jaxquard.intraop.plan_content import plan_content
from jaxquard.intraop.plan_text import plan_text
from jaxquard.intraop.sharded_step import CompiledStep, ShardedStep
from jaxquard.intraop.step_fingerprint import WEAK, StepFingerprint, differences, type_text
from jaxquard.intraop.traced_step import TracedStep, argument_names, argument_number, trace_step, type_of
from jaxquard.intraop.weak_types import as_planned, check_weak_types
from jaxquard.pricing.automatic_mesh import automatic_mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSegment:
    """One segment of a plan.

    Attributes:
        lines: where in the user's code its first contractions stand.
        strategy: for each of its blocks, the choice on every axis.
        reshard_s: what the value that enters it costs to reshard, forward and back.
    """

    kind: int
    lines: tuple[str, ...]
    strategy: tuple[tuple[str, ...], ...]
    time_s: float
    reshard_s: float
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A named plan beside the one that was chosen, by the same prices."""

    name: str
    time_s: float
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingPlan:
    """How to shard a step.

    Attributes:
        axes: the mesh axes and their sizes.
        segments: in the order of the step.
        storage: how state is kept between steps.
        specs: for every argument of the step, by name, how it is cut.
        time_s: of a step, as predicted: measured whole if it has few segments, else put together from pairs of
            neighbours.
        sum_s: the same with every segment by itself, as in equation (8).
        size_bytes: on each device, as predicted.
        rivals: baselines by the same prices.
        frontier: the least time for less and less memory, under the limit: seconds and bytes, by the sums of segments.
        notes: what a user should know: candidates set aside, operations without a rule.
        provenance: where the prices come from.
    """

    fingerprint: StepFingerprint = field(repr=False)
    axes: Mapping[str, int]
    segments: tuple[PlannedSegment, ...]
    specs: Mapping[str, PartitionSpec] = field(repr=False)
    time_s: float
    sum_s: float
    size_bytes: int
    num_programs: int
    rivals: tuple[Rival, ...] = ()
    frontier: tuple[tuple[float, int], ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()
    provenance: str = ""
    storage: Storage = Storage.AS_USED
    mesh: Mesh | None = field(default=None, repr=False, compare=False)

    @property
    def choices(self) -> tuple[tuple[str, ...], ...]:
        """For each block of the step, its choice on every axis."""
        return tuple(names for segment in self.segments for names in segment.strategy)

    @property
    def assignment(self) -> dict[int, tuple[str, ...]]:
        """The same by the number of the block."""
        return dict(enumerate(self.choices))

    @property
    def lengths(self) -> tuple[int, ...]:
        """The number of blocks in each segment."""
        return tuple(len(segment.strategy) for segment in self.segments)

    def apply(self, step: Callable[..., Any], *, mesh: Mesh | None = None, donate: bool = True) -> ShardedStep:
        """The step with the plan's shardings, to be called as the step is; compiled at its first call.

        Args:
            step: the step that the plan was made for.
            mesh: devices with the plan's axes; by default those of the search, or the first ones there are.
            donate: the state's buffers may be taken.

        Raises:
            ShardingError: at the first call, if the step or its arguments are not those of the plan.
        """
        found = self._mesh(mesh)

        types = dict(self.fingerprint.types)

        def make(args: Sequence[Any]) -> CompiledStep:
            traced = trace_step(step, as_planned(args, types))
            with without_mesh():
                analysis = self.analyse(traced)
                return CompiledStep(
                    analysis,
                    self.assignment,
                    mesh=found,
                    storage=self.storage,
                    donate=donate,
                    check=lambda args: check_weak_types(step, args, types),
                )

        return ShardedStep(step, make=make)

    def analyse(self, traced: TracedStep) -> Analysis:
        """Takes the step apart as the plan has it.

        Raises:
            ShardingError: if it is another step, or this version of jaxquard takes it apart in another way.
        """
        different = differences(self.fingerprint, traced)
        if different:
            raise ShardingError(f"the plan was made for another step: {different} Search again for this one.")
        analysis = analyse_step(traced, axes=self.axes, lengths=self.lengths)
        check_choices(analysis, self.assignment)
        return analysis

    def shard(self, *args: Any, mesh: Mesh | None = None) -> Any:
        """Places the step's first argument, or first few, as planned, in memory of its own: they stay as they are.

        Returns:
            The argument, or a tuple of several: `params, moments = plan.shard(params, moments)`.

        Raises:
            ShardingError: if they have other leaves than the plan.
        """
        if not args:
            raise ShardingError("there is nothing to place. Pass the state as the step takes it.")
        found = self._mesh(mesh)
        names = argument_names(args)
        missing = [name for name in names if name not in self.specs]
        if missing:
            raise ShardingError(f"the plan knows no {missing[0]}. Pass the state as the step takes it.")
        lost = [name for name in self.specs if argument_number(name) < len(args) and name not in names]
        if lost:
            raise ShardingError(f"the plan has {lost[0]}, but it is not there. Pass the state as the step takes it.")
        leaves, tree = jax.tree.flatten(args)
        self._check_types(names, leaves)
        shardings = [NamedSharding(found, self.specs[name]) for name in names]
        pairs = zip(leaves, shardings, strict=True)
        placed = jax.tree.unflatten(tree, [jax.device_put(copy_leaf(leaf), sharding) for leaf, sharding in pairs])
        return placed[0] if len(args) == 1 else placed

    def _check_types(self, names: Sequence[str], leaves: Sequence[Any]) -> None:
        planned = dict(self.fingerprint.types)
        for name, leaf in zip(names, leaves, strict=True):
            wanted, found = (text.removesuffix(WEAK) for text in (planned[name], type_text(type_of(leaf))))
            if wanted != found:
                raise ShardingError(
                    f"the plan has {name} as {wanted}, but it is {found}. Pass the state of the step that was planned."
                )

    def save(self, path: str) -> None:
        """Writes the plan as JSON."""
        Path(path).write_text(json.dumps(plan_content(self), indent=1) + "\n")

    def _mesh(self, mesh: Mesh | None) -> Mesh:
        mesh = mesh or self.mesh
        if mesh is None:
            return make_mesh(self.axes)
        if tuple(mesh.shape.items()) != tuple(self.axes.items()):
            raise ShardingError(
                f"the plan is for a mesh of {dict(self.axes)}, but found {dict(mesh.shape)}. Use a mesh of that shape, "
                "or search again for this one."
            )
        return automatic_mesh(mesh)

    def __str__(self) -> str:
        return plan_text(self)


def make_mesh(axes: Mapping[str, int]) -> Mesh:
    """A mesh of the first devices.

    Raises:
        ShardingError: if there are too few.
    """
    sizes = tuple(axes.values())
    wanted = 1
    for size in sizes:
        wanted *= size
    devices = jax.devices()
    if len(devices) < wanted:
        raise ShardingError(
            f"the plan needs {wanted} devices, but there are {len(devices)}, of the platform {devices[0].platform}. "
            "Search again for these; or run it on virtual ones of a CPU (--cpu, or jax_num_cpu_devices)."
        )
    types = (jax.sharding.AxisType.Auto,) * len(sizes)
    return jax.make_mesh(sizes, tuple(axes), axis_types=types, devices=devices[:wanted])
