"""A computation under a plan that reads a part of the state, such as its parameters, and gives none of it back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.extend import core
from jax.sharding import PartitionSpec

from jaxquard.ir.jaxpr_tools import Jaxpr, close, make_jaxpr, variables


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialStep:
    """A function for `RemoteMesh.distributed` of some leaves of the state, and of the step's other arguments.

    Leaves that it does not read are not passed, and so stay where they are.

    Attributes:
        fn: of a list of leaves of the state, and what else the step takes.
        leaves: the numbers of those leaves.
        in_shardings: for each of its arguments a pytree of specs.
    """

    fn: Callable[..., Any] = field(repr=False)
    leaves: tuple[int, ...]
    in_shardings: tuple[Any, ...] = field(repr=False)

    @classmethod
    def of_jaxpr(
        cls,
        jaxpr: Jaxpr,
        constants: Sequence[Any],
        *,
        leaves: Sequence[int],
        out_tree: Any,
        state_specs: Sequence[PartitionSpec],
        more_specs: Sequence[Any],
    ) -> "PartialStep":
        """Makes one of a jaxpr.

        Args:
            jaxpr: its inputs are leaves of the state, all else that the step takes, and constants.
            constants: the values of those.
            leaves: the numbers of the leaves.
            state_specs: their shardings.
            more_specs: those of the other arguments.
        """
        used = set(variables(jaxpr.outvars)).union(*(variables(equation.invars) for equation in jaxpr.eqns))
        places = [place for place in range(len(leaves)) if jaxpr.invars[place] in used]
        inputs = [*(jaxpr.invars[place] for place in places), *jaxpr.invars[len(leaves) :]]
        kept = make_jaxpr(inputs, jaxpr.eqns, jaxpr.outvars)
        run = core.jaxpr_as_fun(close(kept))

        def partial_step(state_leaves: Sequence[Any], *more: Any) -> Any:
            return jax.tree.unflatten(out_tree, run(*state_leaves, *jax.tree.leaves(more), *constants))

        return cls(
            fn=partial_step,
            leaves=tuple(leaves[place] for place in places),
            in_shardings=([state_specs[place] for place in places], *more_specs),
        )

    def take(self, state: Any) -> list[Any]:
        """Returns the leaves of a state that it reads."""
        found = jax.tree.leaves(state)
        return [found[leaf] for leaf in self.leaves]
