"""The answer of a search: a choice for every block of a step, with its price, to be applied, saved and printed.

A plan knows the step that it was made for by its fingerprint, and the mesh by the names and sizes of its axes. It
refuses any other, and says which difference it found.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from jaxquard._jax_compat import without_mesh
from jaxquard.errors import InfeasibleShardingError, ShardingError
from jaxquard.intraop.plan.call_arguments import as_planned, check_weak_types, copy_leaf
from jaxquard.intraop.plan.plan_record import PlannedSegment, PlanRecord, plan_content, read_plan
from jaxquard.intraop.plan.sharded_step import CompiledStep, ShardedStep
from jaxquard.intraop.segments.analysis import Analysis, analyse_step, check_choices
from jaxquard.intraop.segments.block_names import where_text
from jaxquard.intraop.segments.fold_repeats import Fold, fold_repeats, fold_text
from jaxquard.intraop.segments.tune_products import check_products
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.intraop.step.fingerprint import WEAK, differences, type_text
from jaxquard.intraop.step.traced_step import TracedStep, argument_names, argument_number, trace_step, type_of
from jaxquard.pricing.program.sharded_program import automatic_mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingPlan(PlanRecord):
    """A sharding of a step: it can be applied to the step, saved and printed.

    Attributes:
        mesh: the devices of the search; None for a plan that was loaded without any.

    Example:
        >>> def train_step(weight, batch):
        ...     loss, grad = jax.value_and_grad(lambda weight: jnp.mean((batch @ weight) ** 2))(weight)
        ...     return weight - 0.1 * grad, loss
        >>> args = (jnp.ones((16, 32)), jnp.ones((64, 16)))
        >>> mesh = jax.make_mesh((8,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> with jq.pricing.MeasuredPricer(mesh, num_runs=2, max_runs=2, num_compilers=0) as pricer:
        ...     plan = jq.search_sharding(train_step, args, mesh=mesh, pricer=pricer, num_finalists=0)
        >>> sorted(plan.specs), plan.time_s > 0
        (['argument 0', 'argument 1'], True)
        >>> step = plan.apply(train_step, donate=False)  # use it in place of train_step
        >>> weight, loss = step(*plan.shard(*args))
        >>> weight.shape
        (16, 32)
    """

    mesh: Mesh | None = field(default=None, repr=False, compare=False)

    def apply(self, step: Callable[..., Any], *, mesh: Mesh | None = None, donate: bool = True) -> ShardedStep:
        """Applies the plan to the step; the result is called like the step, and compiles at its first call.

        Args:
            step: the step that the plan was made for.
            mesh: devices with the plan's axes; by default those of the search, or the first of `jax.devices()`.
            donate: donates the state.

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
        """Finds the blocks and segments of the step, as the plan has them.

        Raises:
            ShardingError: if it is another step, or this version of jaxquard finds other blocks.
        """
        different = differences(self.fingerprint, traced)
        if different:
            raise ShardingError(f"the plan was made for another step: {different} Search again for this one.")
        products = {int(number): plans for number, plans in self.products.items()}
        analysis = analyse_step(
            traced,
            axes=self.axes,
            lengths=self.lengths,
            plan_products=partial(check_products, products=products, axes=self.axes, assignment=self.assignment),
        )
        check_choices(analysis, self.assignment)
        return analysis

    def shard(self, *args: Any, mesh: Mesh | None = None) -> Any:
        """Places copies of the step's first argument, or first few, with the shardings of the plan.

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
            return make_device_mesh(self.axes)
        if tuple(mesh.shape.items()) != tuple(self.axes.items()):
            raise ShardingError(
                f"the plan is for a mesh of {dict(self.axes)}, but found {dict(mesh.shape)}. Use a mesh of that shape, "
                "or search again for this one."
            )
        return automatic_mesh(mesh)

    def __str__(self) -> str:
        return _plan_text(self)


def load_sharding(path: str | Path, *, mesh: Mesh | None = None) -> ShardingPlan:
    """Reads a plan that `ShardingPlan.save` wrote.

    Args:
        path: of the file.
        mesh: the devices to run on; by default the first of `jax.devices()`.

    Raises:
        ShardingError: if the file is not such a plan.

    Example:
        >>> import tempfile
        >>> def train_step(weight, batch):
        ...     loss, grad = jax.value_and_grad(lambda weight: jnp.mean((batch @ weight) ** 2))(weight)
        ...     return weight - 0.1 * grad, loss
        >>> args = (jnp.ones((16, 32)), jnp.ones((64, 16)))
        >>> mesh = jax.make_mesh((8,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> with jq.pricing.MeasuredPricer(mesh, num_runs=2, max_runs=2, num_compilers=0) as pricer:
        ...     plan = jq.search_sharding(train_step, args, mesh=mesh, pricer=pricer, num_finalists=0)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     plan.save(f"{folder}/plan.json")
        ...     loaded = jq.load_sharding(f"{folder}/plan.json", mesh=mesh)
        >>> loaded.specs == plan.specs
        True
    """
    record = read_plan(path)
    return ShardingPlan(**{entry.name: getattr(record, entry.name) for entry in fields(record)}, mesh=mesh)


def make_device_mesh(axes: Mapping[str, int]) -> Mesh:
    """Returns a mesh of the first devices.

    Raises:
        ShardingError: if there are too few.
    """
    sizes = tuple(axes.values())
    wanted = 1
    for size in sizes:
        wanted *= size
    devices = jax.devices()
    if len(devices) < wanted:
        raise InfeasibleShardingError(
            f"the plan needs {wanted} devices, but there are {len(devices)}, of the platform {devices[0].platform}. "
            "Search again for these; or run it on virtual ones of a CPU (--cpu, or jax_num_cpu_devices)."
        )
    types = (jax.sharding.AxisType.Auto,) * len(sizes)
    return jax.make_mesh(sizes, tuple(axes), axis_types=types, devices=devices[:wanted])


def _plan_text(plan: PlanRecord) -> str:
    """Returns a table of segments with their strategies, then one of the plan beside the baselines."""
    mesh = " x ".join(f"{axis}={size}" for axis, size in plan.axes.items())
    lines = [f"sharding over {mesh}: {_time(plan.time_s)} a step, {_size(plan.size_bytes)} a device (predicted)", ""]
    if plan.storage is not Storage.AS_USED:
        lines[0] += f", state kept as {plan.storage.value} does"
    rows: list[tuple[str, ...]] = [("segment", "strategy of its blocks", "time", "reshard", "memory", "where")]
    for fold in fold_repeats([(segment.kind, segment.strategy, segment.reshard_s) for segment in plan.segments]):
        rows += [_row(plan.segments[fold.start + place], fold, place) for place in range(fold.period)]
    lines += _align(rows)
    lines.append("")
    compared: list[tuple[str, ...]] = [
        ("plan", "time", "of ours", "memory"),
        ("this one", _time(plan.time_s), "1.00", _size(plan.size_bytes)),
    ]
    for baseline in sorted(plan.baselines, key=lambda baseline: baseline.time_s):
        has_price = baseline.time_s != float("inf")
        ratio, size = (f"{baseline.time_s / plan.time_s:.2f}", _size(baseline.size_bytes)) if has_price else ("-", "-")
        compared.append((baseline.name, _time(baseline.time_s), ratio, size))
    lines += _align(compared)
    lines += _product_lines(plan)
    lines += ["", f"{plan.num_programs} prices of parts, then of plans ({plan.provenance})"] if plan.provenance else []
    lines += [f"note: {note}" for note in plan.notes]
    return "\n".join(lines)


def _product_lines(plan: PlanRecord) -> list[str]:
    """Returns a line for all 2D products with the same slices: forward, backward of X and backward of W."""
    counts = Counter(layer.slices for layers in plan.products.values() for layer in layers)
    lines = [f"2D products with {', '.join(map(str, slices))} slices: {count}" for slices, count in counts.items()]
    return ["", *lines] if lines else []


def _row(segment: PlannedSegment, fold: Fold, place: int) -> tuple[str, ...]:
    """Returns the cells of a segment, and of those that it stands for: the others in its place of the fold."""
    strategy = ", ".join("/".join(names) for names in segment.strategy)
    times = "" if fold.count == 1 else f" x {fold.count}"
    paths = (path for paths in segment.parameters for path in paths)
    where = where_text(paths, segment.scopes, segment.lines, is_folded=fold.count > 1)
    reshard = _time(segment.reshard_s) if segment.reshard_s else "-"
    name, time, size = fold_text(fold, place), _time(segment.time_s) + times, _size(segment.size_bytes) + times
    return name, strategy, time, reshard, size, where


def _align(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _time(time_s: float) -> str:
    return "no price" if time_s == float("inf") else f"{time_s * 1e3:.2f} ms"


def _size(size_bytes: float) -> str:
    return f"{size_bytes / 2**20:.1f} MiB"
