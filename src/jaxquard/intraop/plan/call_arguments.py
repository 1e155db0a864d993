"""The arguments of a call: their types are checked, their leaves placed, and donated ones have buffers of their own.

Placement. `jax.device_put` of leaves that are in place already, and a look at the type of each, took 15 ms a step for
the 607 leaves of a BERT with 12 layers on an H200, nearly as long as the step itself (19 ms). In a training loop all
leaves but the batch are results of the last call, and results of one program have the same types and shardings in every
call. So `LeafPlacer` looks only at leaves that are new: a leaf is known if it is the result of the last call that
replaces the state at this place, or the very leaf that was there in the last call.

Buffers. Two leaves of a state can be one array (zeros for both moments of an optimizer), and `jax.device_put` shares
the buffer of the device on which an array already is: both would donate the same memory, which ends the process on CPU.

Weak types. `0.1` and `jnp.array(0.1)` are weakly typed: they take the dtype of what they meet. A state that comes back
from a checkpoint has strong types where the planned one had weak ones. Nearly always the step computes the same; where
it does not, it returns other dtypes, and the plan is for another step.
"""

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from jaxquard.errors import ShardingError
from jaxquard.intraop.step.fingerprint import WEAK, type_text
from jaxquard.intraop.step.traced_step import TracedStep, argument_names, is_weak, trace_jaxpr, type_of


def as_planned(args: Sequence[Any], types: Mapping[str, str]) -> tuple[Any, ...]:
    """Returns the types of arguments, each weak where that of the plan is.

    Args:
        types: of the plan's arguments, by name, as text.
    """
    leaves, tree = jax.tree.flatten(tuple(args))
    found = []
    for name, leaf in zip(argument_names(args), leaves, strict=True):
        own = type_of(leaf)
        is_planned_weak = types.get(name, type_text(own)).endswith(WEAK)
        found.append(jax.ShapeDtypeStruct(own.shape, own.dtype, weak_type=is_planned_weak))
    return jax.tree.unflatten(tree, found)


def check_weak_types(step: Callable[..., Any], args: Sequence[Any], types: Mapping[str, str]) -> None:
    """Refuses arguments for which `jax.jit` would return other dtypes, as other ones are weakly typed than planned.

    Raises:
        ShardingError: names the first argument whose type differs.
    """
    own, planned = jax.tree.map(type_of, tuple(args)), as_planned(args, types)
    texts = [tuple(map(type_text, pair)) for pair in zip(jax.tree.leaves(planned), jax.tree.leaves(own), strict=True)]
    names = argument_names(args)
    different = [(name, *pair) for name, pair in zip(names, texts, strict=True) if pair[0] != pair[1]]
    if different and _result_types(step, own) != _result_types(step, planned):
        name, before, now = different[0]
        raise ShardingError(
            f"the plan was made for another step: {name} was {before} and is {now}. Search again for this one."
        )


def _result_types(step: Callable[..., Any], types: Sequence[Any]) -> Any:
    leaves, tree = jax.tree.flatten(trace_jaxpr(step, types)[1])
    return tree, [(leaf.shape, leaf.dtype) for leaf in leaves]


def copy_leaf(leaf: Any) -> Any:
    """Returns a copy of a leaf in a buffer of its own; a number has none."""
    if isinstance(leaf, np.ndarray):
        return np.array(leaf)
    return leaf.copy() if isinstance(leaf, jax.Array) else leaf


def without_repeats(leaves: list[Any], *, others: frozenset[int] = frozenset()) -> list[Any]:
    """Copies leaves that are the same array as one before, or as one of the others, given by their ids."""
    numbers = set(map(id, leaves))
    if len(numbers) == len(leaves) and numbers.isdisjoint(others):
        return leaves
    seen, found = set(others), []
    for leaf in leaves:
        found.append(copy_leaf(leaf) if id(leaf) in seen else leaf)
        seen.add(id(leaf))
    return found


def with_own_buffers(arrays: Sequence[Any], *, places: Collection[int]) -> list[Any]:
    """Copies arrays at some places that share a buffer with an array at another place, or at a place before.

    To look up buffers takes a while, so of the arrays at other places only those are looked at that have the shape and
    dtype of one at the places.
    """
    own = set(places)
    types = {(arrays[place].shape, arrays[place].dtype) for place in places}
    others = [array for place, array in enumerate(arrays) if place not in own and (array.shape, array.dtype) in types]
    seen = {buffer for array in others for buffer in _buffers(array)}
    found = list(arrays)
    for place in places:
        buffers = _buffers(arrays[place])
        if not seen.isdisjoint(buffers):
            found[place] = arrays[place].copy()
        seen.update(buffers)
    return found


def _buffers(array: Any) -> list[tuple[int, int]]:
    """Returns the device and address of each shard; an empty array has none, nor has one that is traced."""
    if isinstance(array, jax.core.Tracer) or not array.size:
        return []
    return [(shard.device.id, shard.data.unsafe_buffer_pointer()) for shard in array.addressable_shards]


class LeafPlacer:
    """Places the leaves of a step's arguments, call after call."""

    def __init__(
        self,
        step: TracedStep,
        shardings: Sequence[NamedSharding],
        *,
        donated: Collection[int],
        results: Mapping[int, int],
    ) -> None:
        """Makes a placer for a program.

        Args:
            shardings: of the leaves of its arguments.
            donated: the places whose buffers it donates. Only results of the last call are known there: they alone have
                buffers of their own.
            results: for each place of state, the number of the result that replaces it, which is right there.
        """
        self._step, self._shardings, self._donated, self._sources = step, list(shardings), donated, results
        # What each place has without a further look, as far as it is alive, and whether leaves are weakly typed.
        self._known: dict[int, weakref.ref[Any]] = {}
        self._weak = [False] * len(self._shardings)
        self._results: list[weakref.ref[Any]] = []
        # New leaves of a call that has not ended yet, and may fail.
        self._seen: dict[int, weakref.ref[Any]] = {}

    def new_leaves(self, leaves: Sequence[Any]) -> list[int]:
        """Returns the places of leaves that are not known."""
        known = self._known
        return [place for place, leaf in enumerate(leaves) if place not in known or known[place]() is not leaf]

    def check(self, leaves: Sequence[Any], places: Sequence[int]) -> tuple[bool, ...]:
        """Checks the leaves of some places, and returns for every leaf whether it is weakly typed.

        Raises:
            ShardingError: if one has another shape or dtype. The program is for these types alone: a mean over a batch
                has its size in it.
        """
        weak = list(self._weak)
        for place in places:
            leaf, planned = leaves[place], self._step.arg_types[place]
            found = leaf if isinstance(leaf, jax.Array) else jax.typeof(leaf)
            if (found.shape, found.dtype) != (planned.shape, planned.dtype):
                name, types = self._step.arg_names[place], (type_text(planned), type_text(found))
                raise ShardingError(
                    f"the plan was made for another step: {name} was {types[0]} and is {types[1]}. Search again for "
                    "this one."
                )
            weak[place] = is_weak(leaf)
        return tuple(weak)

    def place(self, leaves: Sequence[Any], places: Sequence[int]) -> list[Any]:
        """Returns all leaves, those of some places moved to their shardings."""
        placed = list(leaves)
        moved = jax.device_put([leaves[place] for place in places], [self._shardings[place] for place in places])
        for place, array in zip(places, moved, strict=True):
            placed[place] = array
        there = (place for place in places if _is_at(leaves[place], self._shardings[place]))
        self._seen = {place: weakref.ref(leaves[place]) for place in there if place not in self._donated}
        return placed

    def foreign_leaves(self, leaves: Sequence[Any]) -> list[int]:
        """Returns the places of leaves that are no results of the last call."""
        made = {id(result()) for result in self._results}
        return [place for place, leaf in enumerate(leaves) if id(leaf) not in made]

    def note_results(self, results: Sequence[Any]) -> None:
        """Remembers the results of a call that succeeded; the next call may be given them."""
        seen, self._seen = self._seen, {}
        if results and isinstance(results[0], jax.core.Tracer):  # Then all of them are.
            return
        self._results = list(map(weakref.ref, results))
        for place, reference in (
            seen | {place: self._results[number] for place, number in self._sources.items()}
        ).items():
            self._known[place], self._weak[place] = reference, is_weak(reference())


def _is_at(leaf: Any, sharding: NamedSharding) -> bool:
    """Returns true if a leaf has exactly this sharding; a traced one has none.

    An equivalent sharding is not enough: to JAX an array on a mesh with other types of axes is of another type.
    """
    if isinstance(leaf, jax.core.Tracer) or not isinstance(leaf, jax.Array):
        return False
    return leaf.sharding == sharding
