import jax
import pytest
from jax import lax

from jaxquard.ir.dependence import DimLink, can_partition, compose, dependences
from jaxquard.ir.dependence.link import identity, merge, whole
from tests.ir.dependence.tracing import equations, f32, links_of_call


def link(out_dim, in_dim, num_chunks):
    return DimLink(out_dim=out_dim, in_dim=in_dim, num_chunks=num_chunks)


@pytest.mark.parametrize(
    ("num_parts", "expected"), [(1, True), (2, True), (3, True), (4, False), (6, True), (12, False)]
)
def test_a_dim_is_split_into_what_divides_its_chunks(num_parts, expected):
    assert can_partition(link(0, 0, 6), num_parts) is expected


def test_links_that_follow_each_other_keep_to_the_common_divisor():
    first = (link(0, 1, 12), link(1, 0, 4), link(2, 2, 5))
    second = (link(0, 3, 6), link(1, 0, 8), link(2, 1, 3))
    assert compose(first, second) == (link(0, 0, 4), link(1, 3, 2))


def test_nothing_follows_from_a_value_that_is_not_read():
    assert compose(None, identity((4,))) is None
    assert compose(identity((4,)), None) is None
    assert compose((), identity((4,))) == ()


def test_paths_side_by_side_must_agree():
    one = (link(0, 0, 4), link(1, 1, 6), link(2, 2, 4), link(3, 3, 2))
    other = (link(0, 0, 4), link(1, 1, 4), link(2, 0, 4), link(3, 3, 3))
    assert merge(one, other) == (link(0, 0, 4), link(1, 1, 2))
    assert merge(None, one) == one == merge(one, None)
    assert merge(one, ()) == ()


def test_what_is_needed_whole_is_read_without_links():
    assert whole(identity((2, 3))) == ()
    assert whole(None) is None


def test_dims_of_size_one_carry_no_link():
    assert identity((1, 4)) == (link(1, 1, 4),)


def test_equation_three_of_the_paper_follows_from_its_parts():
    """Figure 4: V (B S, H D) is split and transposed, multiplied and merged; its rows keep in blocks of S."""
    batch, sequence, heads, dim = 4, 6, 3, 5

    def attend(scores, value):
        split = value.reshape(batch, sequence, heads, dim).transpose(0, 2, 1, 3)
        product = lax.dot_general(scores, split, (((3,), (2,)), ((0, 1), (0, 1))))
        return product.transpose(0, 2, 1, 3).reshape(batch * sequence, heads * dim)

    types = (f32(batch, heads, sequence, sequence), f32(batch * sequence, heads * dim))
    chain = [dependences(equation) for equation in equations(attend, *types)]
    split, split_t, product, product_t, merged = chain
    step = merged.links[0][0]
    for links in (product_t.links[0][0], product.links[0][1], split_t.links[0][0], split.links[0][0]):
        step = compose(step, links)
    assert step == (link(0, 0, batch), link(1, 1, heads))
    assert links_of_call(jax.checkpoint(attend), *types) == [["0<-0/4 1<-1/3", "0<-0/4 1<-1/3"]]
