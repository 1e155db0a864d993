"""Keys of a step's prices: all that decides them, in one hash.

    the step        as traced with its first number of microbatches: operations, types, names of arguments, the user's
                    lines of code (blocks are named by these); its rows decide the others
    the target      the contents of the cluster
    the wishes      for strategies, for places where stages may begin
    the programs    jaxquard, by its source files, and JAX, by its version and settings

Float scalars that the code has as numbers, such as a learning rate, change no price in closed form. A compiler may see
them, so that its prices have a key of their own.
"""

import functools
import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import jaxlib
import numpy as np

from jaxquard.cluster import Cluster, cluster_text
from jaxquard.intraop.step.fingerprint import exact_key, type_text, without_scalar_values
from jaxquard.ir.jaxpr_tools import Equation, Jaxpr, sub_jaxprs
from jaxquard.ir.source import SourceFrame, source_frames
from jaxquard.planner.record.match_names import is_line
from jaxquard.planner.step.one_microbatch import LoopStep
from jaxquard.planner.wishes import Wishes
from jaxquard.pricing.program.fingerprint import combine_keys

# Counts the formats of tables, and the ways to make them beyond what the source files show.
_FORMAT = 1
# Settings of JAX that change what a step is traced or lowered to.
_SETTINGS = ("jax_enable_x64", "jax_default_matmul_precision", "jax_threefry_partitionable", "jax_default_prng_impl")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepKeys:
    """The keys of a step's prices.

    Attributes:
        closed_form: of prices in closed form.
        other: of prices by another pricer, beside the pricer's own key.
    """

    closed_form: str
    other: str


def find_step_keys(
    looped: LoopStep,
    *,
    rows: int,
    cluster: Cluster,
    wishes: Wishes,
    ignores_marks: bool = False,
    recipes: Collection[str] | None = None,
) -> StepKeys | None:
    """Returns the keys of a step; None for one that cannot be distinguished from others, as it calls back into Python.

    Args:
        looped: the step with its first number of microbatches.
        rows: of the batch.
        wishes: those for strategies count.
    """
    exact = exact_key(looped.opened)
    structure = exact_key(without_scalar_values(looped.opened))
    if exact is None or structure is None:
        return None
    has_lines = any(is_line(wish.pattern) for wish in wishes.strategies)
    settings = (
        (_FORMAT, package_digest(), jax.__version__, jaxlib.__version__),
        [str(getattr(jax.config, name, None)) for name in _SETTINGS],
        (rows, cluster_text(cluster), [str(wish) for wish in wishes.strategies]),
        (ignores_marks, None if recipes is None else sorted(recipes)),
        (looped.arg_names, [type_text(type_) for type_ in looped.arg_types], looped.state_results, looped.num_marks),
        (str(looped.in_tree), str(looped.out_tree)),
    )
    shared = combine_keys(repr(settings), _constants_key(looped), _source_key(looped.opened, keeps_callers=has_lines))
    return StepKeys(closed_form=combine_keys(shared, structure), other=combine_keys(shared, exact))


def find_loop_key(looped: LoopStep) -> str | None:
    """Returns the key of a step with a number of microbatches, whatever it is priced for; None for one without.

    Code may do something else with small microbatches than with large ones, so that tables which were found by the
    trace with one number are checked by that with another.
    """
    exact = exact_key(looped.opened)
    if exact is None:
        return None
    types = [type_text(type_) for type_ in looped.arg_types]
    names = (looped.arg_names, types, looped.state_results, looped.num_marks, str(looped.in_tree), str(looped.out_tree))
    return combine_keys(exact, repr(names), _constants_key(looped))


@functools.cache
def package_digest() -> str:
    """Returns a hash of jaxquard's source files: another version, or an edited one, may price otherwise."""
    folder = Path(__file__).parents[2]
    found = hashlib.sha256()
    for path in sorted([*folder.rglob("*.py"), *folder.rglob("*.toml")]):
        found.update(path.relative_to(folder).as_posix().encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def _constants_key(looped: LoopStep) -> str:
    """Returns a hash of the values that the step closes over: some of them are counts and places."""
    found = hashlib.sha256()
    for value in looped.opened_constants:
        is_key = jax.dtypes.issubdtype(jax.typeof(value).dtype, jax.dtypes.prng_key)
        array = np.asarray(jax.random.key_data(value) if is_key else value)
        found.update(f"{array.dtype}{array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def _source_key(jaxpr: Jaxpr, *, keeps_callers: bool) -> str:
    """Returns a hash of the name scopes and lines of all operations.

    The lines that all of them were called from, such as that of `parallelize`, name no block, and do not count.

    Args:
        keeps_callers: they count all the same, since a wish is for a line.
    """
    found = [(str(equation.source_info.name_stack), source_frames(equation)) for equation in _all_equations(jaxpr)]
    num_shared = 0 if keeps_callers else _count_shared([frames for _, frames in found if frames])
    digest = hashlib.sha256()
    for scope, frames in found:
        own = frames[: max(1, len(frames) - num_shared)]
        digest.update(f"{scope}{own}\n".encode())
    return digest.hexdigest()


def _all_equations(jaxpr: Jaxpr) -> Iterator[Equation]:
    for equation in jaxpr.eqns:
        yield equation
        for inner in sub_jaxprs(equation):
            yield from _all_equations(inner)


def _count_shared(frames: Sequence[Sequence[SourceFrame]]) -> int:
    """Returns the number of frames at the end of all that are the same."""
    distinct = list(dict.fromkeys(map(tuple, frames)))
    count = 0
    while distinct and all(len(one) > count and one[-1 - count] == distinct[0][-1 - count] for one in distinct):
        count += 1
    return count
