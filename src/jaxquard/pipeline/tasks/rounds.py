"""Orders the operations outside the loops: the region of each, and its round within the region.

Loop k stands between regions k and k+1. Each operation is as late as its users allow, so that
nothing is kept alive through a loop in vain. Within a region, operations of one actor and round
form one task; a value that crosses to another actor is used there in a later round, and computed as early as possible:
no actor waits for the norm of all gradients while another updates its parameters.
"""

from collections.abc import Sequence

from jaxquard.ir.jaxpr_tools import Equation, Var, variables
from jaxquard.pipeline.loop import loop_p


def find_regions(equations: Sequence[Equation], results: list[Var]) -> list[int]:
    """Returns the latest region of each equation that its users allow."""
    num_loops = sum(equation.primitive is loop_p for equation in equations)
    latest: dict[Var, int] = dict.fromkeys(results, num_loops)
    regions = [0] * len(equations)
    loop = num_loops
    for position in reversed(range(len(equations))):
        equation = equations[position]
        if equation.primitive is loop_p:
            loop -= 1
            region = loop
        else:
            region = min((latest[var] for var in equation.outvars if var in latest), default=num_loops)
        regions[position] = region
        for var in variables(equation.invars):
            latest[var] = min(latest.get(var, num_loops), region)
    return regions


class Rounds:
    """Rounds of the equations of each region, on each actor that runs them."""

    def __init__(self, equations: Sequence[Equation], actors: Sequence[tuple[int, ...]], regions: list[int]) -> None:
        self.equations, self.actors, self.regions = equations, actors, regions
        self.definition = {
            var: position
            for position, equation in enumerate(equations)
            if equation.primitive is not loop_p
            for var in equation.outvars
        }

    def _early(self) -> list[dict[int, int]]:
        rounds: list[dict[int, int]] = []
        for position, equation in enumerate(self.equations):
            rounds.append({actor: self._after(rounds, position, equation, actor) for actor in self.actors[position]})
        return rounds

    def _after(self, rounds: list[dict[int, int]], position: int, equation: Equation, actor: int) -> int:
        earliest = 0
        for var in variables(equation.invars):
            source = self.definition.get(var)
            if source is not None and self.regions[source] == self.regions[position]:
                local = rounds[source].get(actor)
                crossing = min(rounds[source].values(), default=-1) + 1
                earliest = max(earliest, crossing if local is None else local)
        return earliest

    def _urgent(self) -> set[int]:
        """Finds the equations that another actor's operations need, in the same region."""
        urgent: set[int] = set()
        for position in reversed(range(len(self.equations))):
            for var in variables(self.equations[position].invars):
                source = self.definition.get(var)
                if source is None or self.regions[source] != self.regions[position]:
                    continue
                if position in urgent or not set(self.actors[position]).issubset(self.actors[source]):
                    urgent.add(source)
        return urgent

    def late(self) -> list[dict[int, int]]:
        """Returns the rounds: those of operations that another actor waits for early, others as late as users allow.

        It adds no rounds.
        """
        early, urgent = self._early(), self._urgent()
        last: dict[tuple[int, int], int] = {}
        for position, found in enumerate(early):
            for actor, round_ in found.items():
                key = (self.regions[position], actor)
                last[key] = max(last.get(key, 0), round_)
        allowed: dict[tuple[Var, int], int] = {}
        late: list[dict[int, int]] = [{} for _ in early]
        for position in reversed(range(len(early))):
            equation, region = self.equations[position], self.regions[position]
            for actor, round_ in early[position].items():
                limits = [allowed[var, actor] for var in equation.outvars if (var, actor) in allowed]
                latest = max(round_, min(limits, default=last[region, actor]))
                late[position][actor] = round_ if position in urgent else latest
            self._allow(allowed, position, equation, late[position])
        return late

    def _allow(
        self, allowed: dict[tuple[Var, int], int], position: int, equation: Equation, rounds: dict[int, int]
    ) -> None:
        for var in variables(equation.invars):
            source = self.definition.get(var)
            if source is None or self.regions[source] != self.regions[position]:
                continue
            for actor, round_ in rounds.items():
                runs_here = actor in self.actors[source]
                for maker in (actor,) if runs_here else self.actors[source]:
                    limit = round_ if maker == actor else round_ - 1
                    allowed[var, maker] = min(allowed.get((var, maker), limit), limit)
