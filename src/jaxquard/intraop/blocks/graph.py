"""Indices of a flat step that the analysis needs again and again: users of values, ancestors, links of dims."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from jaxquard.intraop.blocks.contraction import Contraction, find_contraction, find_row_reader
from jaxquard.intraop.step.phases import EquationPhase, depend_on, find_phases, same_values
from jaxquard.intraop.step.traced_step import TracedStep
from jaxquard.ir.dependence import Dependences, DimLink, Memo, can_partition, dependences
from jaxquard.ir.jaxpr_tools import Equation, Var, definitions, is_var, sub_jaxprs, users, variables

# For each value, the dim that is sharded; None: replicated.
ShardedDims = Mapping[Var, int | None]
# The equations through which state comes to its use as it is, but for its type and the order of its dims.
_VIEWS = ("convert_element_type", "copy", "reshape", "transpose")


@dataclass(frozen=True, kw_only=True)
class StepGraph:
    """A flat step with its indices, each computed on first use.

    Attributes:
        shards_rows_alone: a step without contractions has one all the same: the first equation that reads its data.
    """

    step: TracedStep
    shards_rows_alone: bool = False
    _links: dict[int, Dependences] = field(default_factory=dict, repr=False)
    _memo: Memo = field(default_factory=dict, repr=False)

    @cached_property
    def equations(self) -> Sequence[Equation]:
        return self.step.jaxpr.eqns

    @cached_property
    def phases(self) -> list[EquationPhase]:
        return find_phases(self.equations)

    @cached_property
    def definitions(self) -> dict[Var, int]:
        """The position of the equation that computes each variable."""
        return definitions(self.equations)

    @cached_property
    def users(self) -> dict[Var, list[int]]:
        """The positions of the equations that use each variable."""
        return users(self.equations)

    @cached_property
    def first_values(self) -> dict[Var, Var]:
        """The first variable that each later variable equals."""
        return same_values(self.equations)

    @cached_property
    def repeated(self) -> set[Var]:
        """First variables whose value the forward computes more than once."""
        forward = EquationPhase.FORWARD
        return {first for var, first in self.first_values.items() if self.phases[self.definitions[var]] is forward}

    @cached_property
    def data_vars(self) -> set[Var]:
        """The variables that depend on the data: on arguments that are not state."""
        return depend_on(self.equations, self._data)

    @cached_property
    def _data(self) -> set[Var]:
        """The arguments that are not state."""
        pairs = zip(self.step.jaxpr.invars, self.step.result_of_input, strict=True)
        num_args = self.step.num_args
        return {var for place, (var, result) in enumerate(pairs) if result is None and place < num_args}

    @cached_property
    def contractions(self) -> dict[int, Contraction]:
        """The contractions of the forward, by position."""
        found = {}
        for position, (equation, phase) in enumerate(zip(self.equations, self.phases, strict=True)):
            if phase is EquationPhase.FORWARD:
                contraction = find_contraction(equation, position, data_vars=self.data_vars)
                if contraction is not None:
                    found[position] = contraction
        return found or (self._find_row_reader() if self.shards_rows_alone else {})

    def _find_row_reader(self) -> dict[int, Contraction]:
        for position, (equation, phase) in enumerate(zip(self.equations, self.phases, strict=True)):
            if phase is EquationPhase.FORWARD and not self._data.isdisjoint(variables(equation.invars)):
                found = find_row_reader(equation, position, data=self._data, links=self.links(position))
                if found is not None:
                    return {position: found}
        return {}

    @cached_property
    def ancestors(self) -> list[int]:
        """The forward contractions that each equation depends on, itself included, as bits."""
        bits = {position: 1 << number for number, position in enumerate(self.contractions)}
        of_var: dict[Var, int] = {}
        found = []
        for position, equation in enumerate(self.equations):
            mask = bits.get(position, 0)
            for var in variables(equation.invars):
                mask |= of_var.get(var, 0)
            of_var.update((var, mask) for var in equation.outvars)
            found.append(mask)
        return found

    def bit(self, position: int) -> int:
        """Returns the bit of a contraction in `ancestors`."""
        return self._bits[position]

    @cached_property
    def _bits(self) -> dict[int, int]:
        return {position: 1 << number for number, position in enumerate(self.contractions)}

    def links(self, position: int) -> Dependences:
        """Returns the links between the dims of an equation's outputs and inputs."""
        found = self._links.get(position)
        if found is None:
            found = self._links[position] = dependences(self.equations[position], self._memo)
        return found

    def arrivals(
        self, position: int, output: int, dims: ShardedDims, num_shards: int
    ) -> list[tuple[Var, DimLink | None]]:
        """Returns the sharded inputs of an output, each with the link that carries its dim on; None where it ends."""
        found = self.links(position)
        arriving = []
        for atom, links, is_read in zip(
            self.equations[position].invars, found.links[output], found.reads[output], strict=True
        ):
            dim = dims.get(atom) if is_read and is_var(atom) else None
            if dim is not None:
                fitting = (link for link in links if link.in_dim == dim and can_partition(link, num_shards))
                arriving.append((atom, next(fitting, None)))
        return arriving

    def inputs_of(self, position: int, output: int, dim: int | None, num_shards: int) -> list[tuple[Any, int | None]]:
        """Returns the inputs that an output depends on, each with the dim to shard if the output is sharded so."""
        found = self.links(position)
        rows = zip(self.equations[position].invars, found.links[output], found.reads[output], strict=True)
        return [
            (
                atom,
                next((one.in_dim for one in links if one.out_dim == dim and can_partition(one, num_shards)), None),
            )
            for atom, links, is_read in rows
            if is_read
        ]

    def sources(self, atoms: Iterable[Any], stops: Collection[Var]) -> list[Var]:
        """Returns all variables that values are computed from, themselves included, up to some stops."""
        waiting, found = list(atoms)[::-1], dict[Var, None]()
        while waiting:
            var = waiting.pop()
            if is_var(var) and var not in found:
                found[var] = None
                position = self.definitions.get(var) if var not in stops else None
                waiting += variables(self.equations[position].invars) if position is not None else ()
        return list(found)

    def storage_link(self, position: int, num_shards: int) -> DimLink | None:
        """Returns the dims along which state is stored where the dim of a view is sharded that it has not itself.

        Such a view, a reshape of state, has the parts of a fused weight in a dim of their own (`step.fused`). Between
        its own sharding and that of the view an all-to-all exchanges dims. None for any other equation.
        """
        equation = self.equations[position]
        if equation.primitive.name != "reshape" or equation.invars[0] in self.data_vars:
            return None
        (((*links,),),) = self.links(position).links
        return next((link for link in links if can_partition(link, num_shards)), None)

    def dims_in_views(self, var: Var, num_shards: int) -> set[int]:
        """Returns the dims of state that are there as well in every view that the forward has of it."""
        found = set(range(len(var.aval.shape)))
        for position in self.users.get(var, ()):
            equation = self.equations[position]
            if self.phases[position] is not EquationPhase.FORWARD or equation.primitive.name not in _VIEWS:
                continue
            (((*links,),),) = self.links(position).links
            kept = {link.in_dim: link.out_dim for link in links if can_partition(link, num_shards)}
            if equation.primitive.name == "reshape":
                found &= kept.keys()
            else:
                inner = self.dims_in_views(equation.outvars[0], num_shards)
                found -= {dim for dim, to in kept.items() if to not in inner}
        return found

    def known_chunks(self) -> set[int]:
        """Returns the numbers of chunks of all links that were looked at."""
        return {
            link.num_chunks
            for found in self._links.values()
            for of_output in found.links
            for of_input in of_output
            for link in of_input
        }

    def unknown_primitives(self) -> tuple[str, ...]:
        """Returns the primitives without a rule, of equations that were looked at and the first of every other one."""
        looked_at = {self.equations[position].primitive.name for position in self._links}
        for position, equation in enumerate(self.equations):
            if equation.primitive.name not in looked_at or sub_jaxprs(equation):
                looked_at.add(equation.primitive.name)
                self.links(position)
        return tuple(sorted({name for found in self._links.values() for name in found.unknown_primitives}))

    def first(self, var: Var) -> Var:
        """Returns the first variable with the same value."""
        return self.first_values.get(var, var)

    @cached_property
    def state(self) -> set[Var]:
        """The inputs that a result replaces in the next step."""
        pairs = zip(self.step.jaxpr.invars, self.step.result_of_input, strict=True)
        return {var for var, result in pairs if result is not None}

    @property
    def outputs(self) -> list[Var]:
        return variables(self.step.jaxpr.outvars)
