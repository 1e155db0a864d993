"""Figure 6: the naive order of sends and receives locks, JaxPP's does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxquard.evaluate.jaxpp.figures.send_order import (
    compare_send_orders,
    done_share,
    naive_operations,
    paired_operations,
)
from jaxquard.schedules import GPipe, OneFOneB
from tests.schedules.strategies import schedules


@given(schedules(max_actors=4), st.integers(1, 6))
def test_pairs_that_are_issued_together_never_lock(schedule, num_microbatches):
    operations = paired_operations(schedule.rows(num_microbatches))
    assert done_share(operations) == 1
    sends = sum(entry[0] == "send" for row in operations for entry in row)
    assert sends == sum(entry[0] == "receive" for row in operations for entry in row)


def test_the_naive_order_of_1f1b_locks_where_both_send():
    """Actor 0 sends its second output while actor 1 sends back its first gradient."""
    operations = naive_operations(OneFOneB(2).rows(2))
    assert [entry[0] for entry in operations[0]] == ["run", "send", "run", "send", "receive", "run", "receive", "run"]
    assert [entry[0] for entry in operations[1]] == ["receive", "run", "run", "send", "receive", "run", "run", "send"]
    # Done: 0F0, 0F1, 1F0, 1B0, and the pair of 0F0.
    assert done_share(operations) == 6 / 16


def test_the_naive_order_of_gpipe_runs():
    assert done_share(naive_operations(GPipe(4).rows(8))) == 1


def test_the_figure():
    orders = {order.schedule: order for order in compare_send_orders()}
    assert orders["OneFOneB(4)"].naive_done < 0.5
    assert all(order.paired_done == pytest.approx(1) for order in orders.values())
