"""THE property: where a link is found, run q of the output needs run q of the input alone."""

import jax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxquard.ir.dependence import dependences
from jaxquard.ir.jaxpr_tools import is_var
from tests.ir.dependence.cases import CASES
from tests.ir.dependence.oracle import check_links
from tests.ir.dependence.pieces import LOCAL_PARAMS, check_pieces
from tests.ir.dependence.programs import random_program
from tests.ir.dependence.tracing import call_of, equations, f32, flat_equations, i32

# Each example compiles; `make test-slow` has many more. The few are always the same: others may not partition.
FEW, MANY = settings(max_examples=4, derandomize=True), settings(max_examples=60)
# Keys do not come as pieces of their numbers; random matrices need not have factors.
NOT_IN_PIECES = {"bits", "factorisation", "keys"}


def check_case(name, effort, check):
    """Examples of a case, each checked by a function that returns the number of partitions it tried."""
    num_tried = 0

    @effort
    @given(data=st.data())
    def check_examples(data):
        nonlocal num_tried
        num_tried += check(*CASES[name](data.draw))

    check_examples()
    assert num_tried > 0, "nothing was partitioned, so nothing was checked"


def partition_by_links(fn, types):
    call = call_of(fn, *types)
    assert not dependences(call).unknown_primitives
    return check_links(call)


def run_in_pieces(fn, types):
    found = 0
    for equation in flat_equations(fn, *types):
        inputs = [atom for atom in equation.invars if is_var(atom)]
        if len(set(inputs)) == len(inputs):
            found += check_pieces(equation)
    return found


@pytest.mark.thin(2)
@pytest.mark.parametrize("name", CASES)
def test_what_a_rule_links_keeps_to_its_run(name):
    check_case(name, FEW, partition_by_links)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_what_a_rule_links_keeps_to_its_run_in_many_examples(name):
    check_case(name, MANY, partition_by_links)


@pytest.mark.thin(3)
@pytest.mark.parametrize("name", sorted(CASES.keys() - NOT_IN_PIECES))
def test_pieces_run_apart_give_the_pieces_of_the_whole(name):
    check_case(name, FEW, run_in_pieces)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(CASES.keys() - NOT_IN_PIECES))
def test_pieces_run_apart_give_the_pieces_of_the_whole_in_many_examples(name):
    check_case(name, MANY, run_in_pieces)


@settings(max_examples=40)
@given(data=st.data())
def test_what_is_linked_through_a_program_keeps_to_its_run(data):
    check_links(call_of(*_traceable(data)))


@pytest.mark.slow
@settings(max_examples=400)
@given(data=st.data())
def test_what_is_linked_through_many_programs_keeps_to_its_run(data):
    check_links(call_of(*_traceable(data)))


def _traceable(data):
    program, types = random_program(data.draw)
    return program, *types


def test_the_pieces_of_these_are_really_tried():
    """The oracle is not passed by finding nothing to partition."""
    lax = jax.lax
    subjects = {
        "reshape": (lambda x: lax.reshape(x, (2, 2, 6)), f32(4, 6)),
        "broadcast_in_dim": (lambda x: lax.broadcast_in_dim(x, (3, 4, 6), (1, 2)), f32(4, 6)),
        "slice": (lambda x: lax.slice(x, (0, 1), (4, 3)), f32(4, 6)),
        "dynamic_slice": (lambda x, i: lax.dynamic_slice_in_dim(x, i, 2, 1), f32(4, 6), i32()),
        "gather": (lambda x, i: x.at[:, i].get(mode="clip", wrap_negative_indices=False), f32(4, 6), i32(2)),
        "conv_general_dilated": (
            lambda x, w: lax.conv_general_dilated(x, w, (1,), "SAME", feature_group_count=2),
            f32(4, 4, 5),
            f32(6, 2, 3),
        ),
        "dot_general": (lambda x, y: x @ y, f32(4, 6), f32(6, 2)),
    }
    assert subjects.keys() >= LOCAL_PARAMS.keys()
    for name, (fn, *types) in subjects.items():
        (equation,) = (found for found in equations(fn, *types) if found.primitive.name == name)
        assert check_pieces(equation) > 0
