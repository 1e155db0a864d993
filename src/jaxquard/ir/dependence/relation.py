"""The dependences of several outputs on several inputs, as a matrix, and its algebra.

`relation[output][input]` is a `Dependence`. Relations compose like matrices: the product of two
dependences is `compose`, the sum is `merge`, and None is its zero.
"""

from collections.abc import Sequence
from functools import reduce

from jaxquard.ir.dependence.link import Dependence, compose, identity, merge

Row = tuple[Dependence, ...]
Relation = tuple[Row, ...]


def identity_relation(shapes: Sequence[tuple[int, ...]]) -> Relation:
    """Each value depends on itself alone."""
    return tuple(
        tuple(identity(shape) if row == column else None for column in range(len(shapes)))
        for row, shape in enumerate(shapes)
    )


def columns(relation: Relation, start: int, stop: int | None = None) -> Relation:
    """The dependences on some of the inputs."""
    return tuple(row[start:stop] for row in relation)


def compose_relations(first: Relation, second: Relation, *, num_inputs: int) -> Relation:
    """Outputs to inputs, from outputs to middle values and middle values to inputs."""
    return tuple(
        tuple(
            reduce(merge, (compose(step, onward[column]) for step, onward in zip(row, second, strict=True)), None)
            for column in range(num_inputs)
        )
        for row in first
    )


def merge_rows(one: Row, other: Row) -> Row:
    """Returns the dependences of an output that depends on the inputs in both of these ways."""
    return tuple(merge(left, right) for left, right in zip(one, other, strict=True))


def merge_relations(one: Relation, other: Relation) -> Relation:
    """Returns the dependences of outputs that depend on the inputs in both of these ways."""
    return tuple(merge_rows(left, right) for left, right in zip(one, other, strict=True))


def repeated(step: Relation, shapes: Sequence[tuple[int, ...]]) -> Relation:
    """Returns the relation after any number of steps, none included: a fixpoint, found from above.

    Each round only drops links, lowers chunks or adds reads, so that it ends.
    """
    found = identity_relation(shapes)
    while (wider := merge_relations(found, compose_relations(step, found, num_inputs=len(shapes)))) != found:
        found = wider
    return found
