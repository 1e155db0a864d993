"""The walk against schedules made by hand, whose seconds can be counted."""

import pytest

from jaxquard.hlo import CollectiveWork, OperationKind, ScheduledOperation
from jaxquard.ir.timeline import Track
from jaxquard.pricing.target.walk_schedule import walk_schedule


class Costs:
    """An operation takes its arithmetic in seconds, memory moves a byte a second, a collective takes its bytes.

    The first group of a collective says which link it needs.
    """

    def compute_s(self, operation):
        return float(operation.arithmetic)

    def memory_s(self, size_bytes):
        return float(size_bytes)

    def collective_s(self, work):
        return float(work.size_bytes)

    def links(self, work):
        return frozenset(work.groups[0])


def make(name, kind, **more):
    return ScheduledOperation(name=name, computation="main", kind=OperationKind(kind), opcode=kind, **more)


def work(name, seconds, *, traffic=0):
    return make(name, "compute", arithmetic=seconds, read_bytes=traffic)


def collective(name, seconds, *, link=0, kind="collective"):
    moved = CollectiveWork(opcode="all-gather", size_bytes=seconds, groups=((link,),))
    return make(name, kind, collective=moved)


def start(name, seconds, *, link=0):
    return collective(name, seconds, link=link, kind="start")


def copy(name, seconds):
    return make(name, "start", read_bytes=seconds)


def done(name):
    return make(f"{name}-done", "done", start=name)


def loop(times, *body):
    return make("loop", "loop", times=times, bodies=(body,))


def walk(*operations):
    return walk_schedule(operations, Costs())


def seconds(*operations):
    found = walk(*operations)
    return found.time_s, found.communication_s


class TestCollectives:
    def test_one_without_a_start_is_exposed(self):
        assert seconds(work("a", 3), collective("g", 4), work("b", 2)) == (9, 4)

    def test_one_behind_an_operation_is_hidden(self):
        assert seconds(start("g", 4), work("a", 5), done("g"), work("b", 1)) == (6, 0)

    def test_the_rest_of_one_is_exposed(self):
        assert seconds(start("g", 7), work("a", 5), done("g"), work("b", 1)) == (8, 2)

    def test_two_on_one_link_take_turns(self):
        assert seconds(start("g", 4), start("h", 4), work("a", 5), done("g"), done("h")) == (8, 3)

    def test_two_on_two_links_run_together(self):
        assert seconds(start("g", 4), start("h", 4, link=1), work("a", 5), done("g"), done("h")) == (5, 0)

    def test_one_without_a_start_waits_for_the_link(self):
        assert seconds(start("g", 4), collective("h", 2), done("g")) == (6, 6)

    def test_the_table(self):
        found = walk(start("g", 7), work("a", 5), done("g"), collective("h", 1))
        assert [(one.name, one.time_s, one.exposed_s, one.times) for one in found.collectives] == [
            ("g", 7, 2, 1),
            ("h", 1, 1, 1),
        ]

    def test_what_nobody_waits_for_still_ends(self):
        assert seconds(work("a", 1), start("g", 4)) == (5, 0)


class TestCopies:
    def test_a_copy_hides_behind_an_operation(self):
        found = walk(copy("c", 4), work("a", 5), done("c"))
        assert (found.time_s, found.stalled_s, found.communication_s) == (5, 0, 0)

    def test_the_rest_of_a_copy_stalls(self):
        found = walk(copy("c", 4), work("a", 1), done("c"), work("b", 1))
        assert (found.time_s, found.stalled_s, found.compute_s) == (5, 3, 5)

    def test_copies_take_turns(self):
        assert walk(copy("c", 4), copy("d", 4), work("a", 5), done("c"), done("d")).time_s == 8

    def test_traffic_of_operations_holds_copies_back(self):
        """An operation of 3 s that moves bytes for 2 s leaves the copy 1 s."""
        assert walk(copy("c", 4), work("a", 3, traffic=2), done("c")).time_s == 6


class TestLoops:
    def test_iterations_add_up(self):
        assert seconds(loop(5, work("a", 3), collective("g", 1))) == (20, 5)

    def test_none(self):
        assert seconds(work("a", 3), loop(0, work("b", 100))) == (3, 0)

    def test_one(self):
        assert seconds(loop(1, work("a", 3))) == (3, 0)

    def test_collectives_count_by_iterations(self):
        (found,) = walk(loop(7, start("g", 4), work("a", 3), done("g"))).collectives
        assert (found.times, found.exposed_s) == (7, 7)

    def test_inside_of_each_other(self):
        assert seconds(loop(3, work("a", 1), loop(4, work("b", 2), collective("g", 1)))) == (3 * (1 + 4 * 3), 12)

    def test_flops_count_by_iterations(self):
        from jaxquard.hlo import MatrixProduct

        product = MatrixProduct(batch=1, m=2, k=3, n=4, dtype="f32", output_item_bytes=4)
        found = walk(loop(5, make("p", "compute", arithmetic=1, products=(product,))))
        assert found.flops == 5 * 48

    def test_a_link_that_is_busy_at_the_end_of_an_iteration_is_busy_in_the_next(self):
        """The sum of one iteration goes on beside the next; its own link holds the steady state at 4 s."""
        body = (done("g"), start("g", 4), work("a", 1))
        found = walk(loop(6, *body), done("g"))
        assert found.time_s == 6 * 4


class TestOthers:
    def test_of_a_branch_the_slowest_counts(self):
        branch = make("b", "branch", bodies=((work("a", 1),), (work("c", 5), collective("g", 1)), (work("d", 2),)))
        found = walk(work("x", 1), branch)
        assert (found.time_s, found.communication_s, [one.name for one in found.collectives]) == (7, 1, ["g"])

    def test_a_call_runs_its_body(self):
        assert seconds(make("c", "call", bodies=((work("a", 2), work("b", 3)),))) == (5, 0)

    def test_other_work_beside_the_schedule_counts_first(self):
        assert seconds(make("s", "start", bodies=((work("a", 2),),)), work("b", 3), done("s")) == (5, 0)

    def test_timeline(self):
        found = walk(work("a", 3), start("g", 4), work("b", 2), done("g"), work("c", 1))
        spans = [(span.name, span.track, span.start_s, span.end_s) for span in found.timeline.spans]
        assert spans == [
            ("a", Track.COMPUTE, 0, 3),
            ("g", Track.TRANSFER, 3, 7),
            ("b", Track.COMPUTE, 3, 5),
            ("c", Track.COMPUTE, 7, 8),
        ]

    def test_of_a_long_loop_the_timeline_has_two_iterations(self):
        names = [span.name for span in walk(loop(100, work("a", 3))).timeline.spans]
        assert names == ["a", "a", "loop: 98 more iterations"]

    @pytest.mark.parametrize("times", [1, 2, 3, 10])
    def test_a_loop_is_its_iterations_one_by_one(self, times):
        body = (start("g", 4), work("a", 3), done("g"), work("b", 2))
        assert seconds(loop(times, *body)) == seconds(*(body * times))
