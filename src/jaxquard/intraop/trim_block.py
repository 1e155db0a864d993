"""Takes from the end of a block what the next block can as well do for itself.

b = add a c      in the block, and used after it
d = mul b b      in the block, and used only after it: leaves, so that one value crosses instead of two
"""

from collections.abc import Collection

from jaxquard.intraop.graph import StepGraph
from jaxquard.intraop.grow_block import Growth
from jaxquard.intraop.phases import Phase
from jaxquard.ir.jaxpr_tools import variables


def trim_block(graph: StepGraph, growth: Growth, *, keep: Collection[int]) -> None:
    """Removes equations whose results are not used in the block, and whose inputs are all used after it as well."""
    inside = set(growth.positions)

    def is_used_after(var) -> bool:
        return any(user not in inside and graph.phases[user] is Phase.FORWARD for user in graph.users.get(var, ()))

    for position in reversed(growth.positions):
        equation = graph.equations[position]
        if position in keep or position in graph.contractions:
            continue
        users = {user for var in equation.outvars for user in graph.users.get(var, ())}
        forward = [user for user in users if graph.phases[user] is Phase.FORWARD]
        own = [var for var in variables(equation.invars) if var in growth.reached_by]
        if own and not inside.intersection(forward) and all(map(is_used_after, own)):
            inside.remove(position)
            for var in equation.outvars:
                del growth.reached_by[var]
                for dims in growth.dims:
                    del dims[var]
    growth.positions = [position for position in growth.positions if position in inside]
