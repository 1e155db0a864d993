"""Keys and random bits.

One key gives nothing to shard: the bits that follow from it need it whole, which costs nothing. The dims
of an array of keys are a batch; but not of keys of the kinds `rbg` and `unsafe_rbg`, where the numbers of all of them
follow from the first.
"""

from jaxquard.ir.dependence.link import Links, links_of
from jaxquard.ir.dependence.relation import Relation
from jaxquard.ir.dependence.rule import Rule, for_each, in_shapes, out_shapes
from jaxquard.ir.dependence.rules.elementwise import elementwise
from jaxquard.ir.jaxpr_tools import Equation


def leading_dims(rank: int, out_shape: tuple[int, ...], in_shape: tuple[int, ...]) -> Links:
    """The first `rank` dims, each with itself."""
    sizes = zip(out_shape[:rank], in_shape[:rank], strict=True)
    return links_of((dim, dim, size) for dim, (size, in_size) in enumerate(sizes) if size == in_size)


def _batch_of_keys(equation: Equation) -> Relation:
    """The side with fewer dims has the keys, or what takes a key's place; the other has more for each."""
    out_shape, shape = out_shapes(equation)[0], in_shapes(equation)[0]
    if not is_each_by_itself(equation):
        return _read_whole(equation)
    return ((leading_dims(min(len(shape), len(out_shape)), out_shape, shape),),)


def is_each_by_itself(equation: Equation) -> bool:
    """Returns True if what follows from a key in an array of keys follows from that one alone."""
    kinds = {str(atom.aval.dtype) for atom in equation.invars if str(atom.aval.dtype).startswith("key<")}
    return equation.primitive.name in _NO_NUMBERS or kinds <= {"key<fry>"}


def _one_for_one(equation: Equation) -> Relation:
    return elementwise(equation) if is_each_by_itself(equation) else _read_whole(equation)


def _read_whole(equation: Equation) -> Relation:
    return (((),) * len(equation.invars),) * len(equation.outvars)


_ONE_FOR_ONE = "random_clone random_fold_in random_gamma random_seed threefry2x32"
_MANY_FOR_ONE = "random_bits random_split random_unwrap random_wrap"
_NO_NUMBERS = frozenset({"random_clone", "random_wrap", "random_unwrap", "random_seed"})
_NOTHING_TO_SHARD = "empty empty2 iota iota_2x32_shape platform_index rng_bit_generator rng_uniform"

RULES: dict[str, Rule] = (
    for_each(_ONE_FOR_ONE, _one_for_one)
    | for_each(_MANY_FOR_ONE, _batch_of_keys)
    | for_each(_NOTHING_TO_SHARD, _read_whole)
)
