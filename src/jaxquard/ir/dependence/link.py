"""Links of dims that can be sharded together: CFP's Table 1 in the form that equation (2) tests.

CFP writes a dependence as an affine map of indices and then asks, by equation (2), whether it keeps
blocks in place: `b = floor(a / d) * d + k` with `0 <= k < d`, and `A / d` a multiple of the number of
devices. Here that block form is all that is kept, as the number of blocks `num_chunks = A / d`.
Nothing that could be used is lost: XLA splits a dim into equal contiguous runs at every operator, so
a map that is not of this form cannot be followed by a sharding of the value between two operators.

| operator               | Table 1                              | link                                     |
| ---------------------- | ------------------------------------ | ---------------------------------------- |
| elementwise, transpose | `a -> a`                             | `num_chunks` = size of the dim           |
| reshape, split         | `(a_j, a_k) -> K a_j + a_k`          | `a_j`, in as many chunks as its size     |
|                        |                                      | `a_k`: none, it strides over the input   |
| reshape, merge         | `a_k -> (floor(a_k / K), a_k % K)`   | the major factor, in chunks of its size  |
|                        |                                      | the minor, `a_k % K`: none               |
| broadcast, contraction | `*`                                  | none                                     |

Two dependences that follow each other compose (`compose`), two that exist side by side must agree
(`merge`). Both keep to the greatest common divisor of the chunks, since a link for n chunks is one
for every divisor of n.

A link holds with every other input replicated, or sharded by its own link to the same output dim. An
input without a link for an output dim must be replicated (`*`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import gcd


@dataclass(frozen=True, slots=True, kw_only=True)
class DimLink:
    """An output dim and an input dim that can be sharded together.

    Split into `num_chunks` equal runs, run q of the output dim depends only on run q of the input dim. It
    then also holds for every divisor of `num_chunks`, which is at least 2.
    """

    out_dim: int
    in_dim: int
    num_chunks: int

    def __str__(self) -> str:
        return f"{self.out_dim}<-{self.in_dim}/{self.num_chunks}"


Links = tuple[DimLink, ...]
"""The links of an output with an input: in order of the output's dims, at most one for each."""

Dependence = Links | None
"""The links of an output with an input, or None where the output does not depend on it at all."""


def links_of(candidates: Iterable[tuple[int, int, int]]) -> Links:
    """Links from (output dim, input dim, number of chunks), less those that cannot be sharded."""
    return tuple(
        DimLink(out_dim=out_dim, in_dim=in_dim, num_chunks=num_chunks)
        for out_dim, in_dim, num_chunks in sorted(candidates)
        if num_chunks > 1
    )


def identity(shape: tuple[int, ...]) -> Links:
    """Each dim linked with itself."""
    return links_of((dim, dim, size) for dim, size in enumerate(shape))


def can_partition(link: DimLink, num_shards: int) -> bool:
    """Tests equation (2): both dims of a link can be split into `num_shards` shards that correspond."""
    return link.num_chunks % num_shards == 0


def compose(first: Dependence, second: Dependence) -> Dependence:
    """Output to input, from output to middle (`first`) and middle to input (`second`)."""
    if first is None or second is None:
        return None
    onward = {link.out_dim: link for link in second}
    return links_of(
        (link.out_dim, onward[link.in_dim].in_dim, gcd(link.num_chunks, onward[link.in_dim].num_chunks))
        for link in first
        if link.in_dim in onward
    )


def merge(one: Dependence, other: Dependence) -> Dependence:
    """Returns the dependence of an output that depends on an input in both of these ways."""
    if one is None or other is None:
        return other if one is None else one
    found = {link.out_dim: link for link in other}
    return links_of(
        (link.out_dim, link.in_dim, gcd(link.num_chunks, found[link.out_dim].num_chunks))
        for link in one
        if link.out_dim in found and found[link.out_dim].in_dim == link.in_dim
    )


def whole(dependence: Dependence) -> Dependence:
    """The same reads without the links: what is read is needed whole."""
    return None if dependence is None else ()
