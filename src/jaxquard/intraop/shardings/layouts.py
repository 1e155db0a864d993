"""Layouts: the dim along which each value of a segment is sharded, given a choice for every block.

CFP, section 3.3, figure 5. The choice of a block decides the layout of its values. What a block needs from outside is
propagated back through the equations that stand in no block, up to the inputs of the step or the values of other
blocks; where blocks want the same value in different layouts, the first one decides, and the compiler reshards for the
others. Gradients have the layout of the values that they belong to, and new state that of the old. What is left follows
its inputs where they agree, and is left to the compiler where they do not.
"""

import enum
import functools
import math
from collections import ChainMap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from jax.sharding import PartitionSpec

from jaxquard.intraop.blocks.block import Block, Choice
from jaxquard.intraop.blocks.graph import StepGraph
from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.intraop.segments.find_segments import Segment
from jaxquard.intraop.segments.interfaces import SegmentInterface
from jaxquard.intraop.segments.strategies import Strategy
from jaxquard.intraop.step.phases import EquationPhase
from jaxquard.ir.jaxpr_tools import Equation, Var, is_var


class Storage(enum.Enum):
    """The layout of state between steps: as the step uses it, or sharded further as ZeRO does.

    ZeRO 2 shards state as ZeRO 1 does. It differs in a step with a loop over microbatches, whose sums of gradients it
    shards as well.
    """

    AS_USED = "as used"
    ZERO_1 = "zero 1"
    ZERO_2 = "zero 2"
    ZERO_3 = "zero 3"


# For each block, the name of its choice on every mesh axis, the outer one first.
Assignment = Mapping[int, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """The dims along which values are sharded, by mesh axis."""

    axes: Mapping[str, int]
    of_axes: Mapping[str, "AxisLayout"]

    def spec(self, var: Var) -> PartitionSpec | None:
        """Returns the sharding of a value; None if it is left to the compiler."""
        return self._make(var, {axis: layout.dims for axis, layout in self.of_axes.items()})

    def specs(self, variables: Iterable[Var]) -> dict[Var, PartitionSpec]:
        """Returns the shardings of values, without those that are left to the compiler."""
        if any(layout.late for layout in self.of_axes.values()):
            return {var: spec for var in variables if (spec := self.spec(var)) is not None}
        of_axes = [(axis, self.axes[axis], layout.dims) for axis, layout in self.of_axes.items()]
        found = {}
        for var in variables:
            axis_dims = tuple([(axis, size, dims[var]) for axis, size, dims in of_axes if var in dims])
            if axis_dims:
                found[var] = _make_spec(var.aval.shape, axis_dims)
        return found

    def entry_spec(self, var: Var) -> PartitionSpec | None:
        """Returns the sharding in which the segment wants a value from outside; None if it is left to the compiler."""
        found = self._make(var, {axis: layout.entries for axis, layout in self.of_axes.items()})
        return self.spec(var) if found is None else found

    def stored_spec(self, var: Var) -> PartitionSpec | None:
        """Returns the sharding of state between steps; None where that is the one in use.

        Axes along which the two agree shard it as well.
        """
        stored = {axis for axis, layout in self.of_axes.items() if var in layout.stored}
        if not stored:
            return None
        dims = {axis: ChainMap(layout.stored, layout.dims) for axis, layout in self.of_axes.items()}
        return self._make(var, dims, late=stored)

    def _make(
        self, var: Var, dims: Mapping[str, Mapping[Var, int | None]], *, late: Collection[str] | None = None
    ) -> PartitionSpec | None:
        """Puts axes that shard state in use first: state, and what updates it, is gathered along the others alone."""
        late = [axis for axis, layout in self.of_axes.items() if var in layout.late] if late is None else late
        axes = sorted(dims, key=lambda axis: axis in late) if late else dims
        axis_dims = [(axis, self.axes[axis], dims[axis][var]) for axis in axes if var in dims[axis]]
        return _make_spec(tuple(var.aval.shape), tuple(axis_dims)) if axis_dims else None


def make_spec(shape: Sequence[int], dims: Mapping[str, int | None], axes: Mapping[str, int]) -> PartitionSpec:
    """Returns the sharding of an array by the dim of each axis, without the axes that do not divide their dim."""
    return _make_spec(tuple(shape), tuple((axis, axes[axis], dim) for axis, dim in dims.items()))


@functools.lru_cache(maxsize=4096)
def _make_spec(shape: tuple[int, ...], axis_dims: tuple[tuple[str, int, int | None], ...]) -> PartitionSpec:
    names: list[tuple[str, ...]] = [() for _ in shape]
    parts = [1 for _ in shape]
    for axis, size, dim in axis_dims:
        if dim is not None and shape[dim] % (parts[dim] * size) == 0:
            names[dim] += (axis,)
            parts[dim] *= size
    entries = [None if not of_dim else of_dim[0] if len(of_dim) == 1 else of_dim for of_dim in names]
    while entries and entries[-1] is None:
        entries.pop()
    return PartitionSpec(*entries)


class StepLayouts:
    """The layouts of a step's segments; each is derived once for each choice of the segment's blocks.

    Args:
        like: those of the same step on another mesh. Where both have the same segments, axes of the same size share
            their layouts.

    Attributes:
        analysis: the blocks and segments of the step.
    """

    def __init__(self, analysis: Analysis, *, like: "StepLayouts | None" = None) -> None:
        self.analysis = analysis
        self._layouts: dict[tuple[Segment, Strategy, Storage], Layouts] = {}
        # By segment, size of the axis, choices, storage, and the devices over which that shards state further.
        self._on_axes: dict[tuple[Segment, int, tuple[str, ...], Storage, int], AxisLayout] = {}
        if like is not None and like.analysis.interfaces is analysis.interfaces:
            self._on_axes = like._on_axes

    def interface(self, segment: Segment) -> SegmentInterface:
        """Returns the inputs and outputs of a segment."""
        return self.analysis.interfaces.find(segment)

    def lay_out(self, assignment: Assignment, *, segment: Segment, storage: Storage = Storage.AS_USED) -> Layouts:
        """Returns the layouts of a segment's values, and of those that it takes from other segments."""
        key = segment, tuple(tuple(assignment[block]) for block in segment.blocks), storage
        if key not in self._layouts:
            found = {
                axis: self._lay_out_axis(
                    segment, axis, tuple(assignment[block][place] for block in segment.blocks), storage
                )
                for place, axis in enumerate(self.analysis.axes)
            }
            self._layouts[key] = Layouts(axes=self.analysis.axes, of_axes=found)
        return self._layouts[key]

    def _lay_out_axis(self, segment: Segment, axis: str, names: tuple[str, ...], storage: Storage) -> "AxisLayout":
        """Returns the layouts along one axis; strategies that differ on other axes share them, and so do meshes."""
        analysis, num_devices = self.analysis, math.prod(self.analysis.axes.values())
        key = segment, analysis.axes[axis], names, storage, 0 if storage is Storage.AS_USED else num_devices
        if key not in self._on_axes:
            interface = self.interface(segment)
            blocks = [analysis.blocks[number] for number in segment.blocks]
            choices = {block.number: block.choice(name) for block, name in zip(blocks, names, strict=True)}
            layout = AxisLayout(analysis.graph, num_shards=analysis.axes[axis], interface=interface)
            layout.lay_out_blocks(blocks, choices)
            layout.lay_out_gradients(analysis, choices)
            layout.lay_out_state(storage, num_devices=num_devices)
            layout.lay_out_rest()
            layout.lay_out_followers(storage, num_devices=num_devices)
            self._on_axes[key] = layout
        return self._on_axes[key]


class AxisLayout:
    """The layouts of a segment's values along one mesh axis, filled in step by step.

    Attributes:
        dims: for each value with a known layout, the dim that is sharded; None: replicated over this axis.
        entries: the same for values that come from other segments, as this one wants them.
        stored: the same for state whose layout between steps differs from the one that the forward uses.
        late: the values that are sharded only because ZeRO shards the state.
    """

    def __init__(self, graph: StepGraph, *, num_shards: int, interface: SegmentInterface):
        self.graph = graph
        self.num_shards = num_shards
        self.interface = interface
        self.inside = set(interface.positions)
        self.dims: dict[Var, int | None] = {}
        self.entries: dict[Var, int | None] = {}
        self.stored: dict[Var, int | None] = {}
        self.late: set[Var] = set()

    def lay_out_blocks(self, blocks: Sequence[Block], choices: Mapping[int, Choice]) -> None:
        for block in blocks:
            self.dims.update(choices[block.number].dims)
            self.dims.update(choices[block.number].follower_dims)
        for block in blocks:
            choice = choices[block.number]
            for (position, place), dim in (*choice.needs.items(), *choice.follower_needs.items()):
                self._want(self.graph.equations[position].invars[place], dim)

    def lay_out_gradients(self, analysis: Analysis, choices: Mapping[int, Choice]) -> None:
        for var, cotangent in self.interface.cotangents:
            if var in self.dims:
                continue
            choice = choices[analysis.owners[cotangent.position]]
            equation = self.graph.equations[cotangent.position]
            value = equation.outvars[0] if cotangent.place is None else equation.invars[cotangent.place]
            key = (cotangent.position, cotangent.place)
            if key in choice.needs:
                dim = choice.needs[key]
            elif key in choice.follower_needs:
                dim = choice.follower_needs[key]
            elif value in self.dims:
                dim = self.dims[value]
            else:
                # A contraction of an input branch that nothing is wanted of.
                continue
            self.dims[var] = None if dim is None else cotangent.dims.index(dim)

    def lay_out_state(self, storage: Storage, *, num_devices: int) -> None:
        """Gives new state the layout of the old, and what the update computes on the way that of the stored state."""
        for var, out in self.interface.state:
            if var not in self.dims or not self._is_inside(out):
                continue
            used = self.dims[var]
            kept = self._largest_dim(var, num_devices) if storage is not Storage.AS_USED and used is None else used
            position = self.graph.definitions.get(out)
            if kept == used or position is None:
                self._want(out, used, is_late=var in self.late)
            elif storage is Storage.ZERO_3:
                self.stored[var] = kept
                self._want(out, kept, is_late=True)
            else:
                self.dims[out] = used
                for source, dim in list(self._inputs(position, out, kept)):
                    self._want(source, dim, is_late=True)

    def lay_out_followers(self, storage: Storage, *, num_devices: int) -> None:
        """Gives state that only tracks other state, such as a running mean of weights, the layout it is computed in."""
        for var, out in self.interface.state:
            if var in self.dims or not var.aval.shape or var not in self.graph.users or out not in self.dims:
                continue
            position = self.graph.definitions.get(out)
            if position is None or position not in self.inside:
                continue
            kept, is_late = self.dims[out], out in self.late
            if kept is None and storage is not Storage.AS_USED and out not in self.graph.users:
                kept, is_late = self._largest_dim(var, num_devices), True
            self._shard(out, kept, is_late=is_late)
            for source, dim in list(self._inputs(position, out, kept)):
                self._want(source, dim, is_late=is_late)
            if var not in self.dims:
                self._shard(var, kept, is_late=is_late)

    def lay_out_rest(self) -> None:
        """Propagates layouts through the other equations, in order: most of the backward, the ends of the forward."""
        interface = self.interface
        for found in interface.arriving:
            # A gradient that goes on through sums, to values further back, is sharded as a value of its shape.
            others = (other.var for other in (*interface.leaving, *interface.arriving) if other.value is None)
            like = (other for other in others if other.aval.shape == found.var.aval.shape)
            value = next((var for var in (found.value, *like) if var in self.dims or var in self.entries), None)
            if found.value is not None and value is not None:
                self.entries[found.var] = ChainMap(self.dims, self.entries)[value]
        for position in interface.positions:
            equation = self.graph.equations[position]
            for output, var in enumerate(equation.outvars):
                first = self.graph.first(var)
                if var in self.dims or not var.aval.shape:
                    continue
                if first in self.dims:
                    self._shard(var, self.dims[first], is_late=first in self.late)
                    continue
                found = self._carry(position, output)
                if found is not None:
                    is_late = any(atom in self.late for atom in equation.invars if is_var(atom))
                    self._shard(var, found[0], is_late=is_late)
        for found in interface.leaving:
            if found.value in self.entries:
                self.dims[found.var] = self.entries[found.value]

    def _carry(self, position: int, output: int) -> tuple[int | None] | None:
        """Returns the dim of an output to which the layouts of the inputs lead, in a tuple.

        None if they do not agree, or none is known.
        """
        equation = self.graph.equations[position]
        known = ChainMap(self.dims, self.entries)
        arriving = self.graph.arrivals(position, output, known, self.num_shards)
        wanted = {link.out_dim for _, link in arriving if link is not None} or set(self._along_image(equation))
        reads = zip(equation.invars, self.graph.links(position).reads[output], strict=True)
        is_known = bool(arriving) or any(is_read and is_var(atom) and atom in known for atom, is_read in reads)
        if not is_known or len(wanted) > 1 or (not wanted and self._divides_across(position)):
            return None
        return (wanted.pop() if wanted else None,)

    def _along_image(self, equation: Equation) -> Iterable[int]:
        """Yields the spatial dim of a convolution's result if the image is sharded along it."""
        if equation.primitive.name == "conv_general_dilated" and is_var(equation.invars[0]):
            numbers, image = equation.params["dimension_numbers"], equation.invars[0]
            for in_dim, out_dim in zip(numbers.lhs_spec[2:3], numbers.out_spec[2:3], strict=True):
                is_even = equation.outvars[0].aval.shape[out_dim] % self.num_shards == 0
                if is_even and image in self.dims and self.dims[image] == in_dim:
                    yield out_dim

    def _divides_across(self, position: int) -> bool:
        """Returns true if a reshape of the backward splits the sharded dim, and the shards lie across two new dims.

        So are the gradients of heads that are repeated, by groups: 8 heads on 8 devices are 2 x 4 heads on 2 x 4. No
        dim of the result has this sharding, but the compiler can express it, and sums each group where it is.
        """
        equation = self.graph.equations[position]
        if equation.primitive.name != "reshape" or self.graph.phases[position] is not EquationPhase.BACKWARD:
            return False
        (atom,), (out,) = equation.invars[:1], equation.outvars
        dim = self.dims.get(atom) if is_var(atom) else None
        if dim is None or atom.aval.shape[:dim] != out.aval.shape[:dim] or len(out.aval.shape) < dim + 2:
            return False
        major, minor = out.aval.shape[dim : dim + 2]
        is_split = atom.aval.shape[dim] == major * minor and major > 1
        return is_split and self.num_shards % major == 0 and minor % (self.num_shards // major) == 0

    def _shard(self, var: Var, dim: int | None, *, is_late: bool) -> None:
        self.dims[var] = dim
        (self.late.add if is_late else self.late.discard)(var)

    def _want(self, var: Var, dim: int | None, *, is_late: bool = False) -> None:
        """Sets the layout of a value that has none, and of what it is computed from if that stands in no block."""
        waiting = [(var, dim)]
        while waiting:
            var, dim = waiting.pop()
            if not is_var(var) or var in self.dims or not var.aval.shape:
                continue
            if dim is not None and var.aval.shape[dim] % self.num_shards:
                dim = None
            position = self.graph.definitions.get(var)
            if position is not None and position not in self.inside:
                if var not in self.entries:
                    self.entries[var] = dim
                    self.late.update([var] if is_late else [])
                continue
            self._shard(var, dim, is_late=is_late)
            if position is not None and self.graph.phases[position] is not EquationPhase.BACKWARD:
                waiting.extend(self._inputs(position, var, dim))

    def _inputs(self, position: int, var: Var, dim: int | None) -> Iterable[tuple[Var, int | None]]:
        """Yields the inputs of an equation with the dims that follow from that of an output."""
        output = self.graph.equations[position].outvars.index(var)
        for atom, in_dim in self.graph.inputs_of(position, output, dim, self.num_shards):
            is_lost = in_dim is None and dim is not None
            stored = self.graph.storage_link(position, self.num_shards) if is_lost else None
            yield atom, in_dim if stored is None else stored.in_dim

    def _is_inside(self, var: Var) -> bool:
        position = self.graph.definitions.get(var)
        return position is None or position in self.inside

    def _largest_dim(self, var: Var, num_devices: int) -> int | None:
        """Returns the largest dim that so many devices divide, of those that its use has too; None if none is."""
        shape = var.aval.shape
        fitting = [dim for dim, size in enumerate(shape) if size % num_devices == 0]
        if len(fitting) > 1:
            in_views = self.graph.dims_in_views(var, num_devices)
            fitting = [dim for dim in fitting if dim in in_views] or fitting
        return max(fitting, key=lambda dim: shape[dim], default=None)
