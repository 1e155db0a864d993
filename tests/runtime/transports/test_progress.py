"""The report that a watchdog gets."""

import pytest

from jaxquard.runtime.transports.progress import TransportProgress


class Part:
    """An array that is computed when the test says so."""

    def __init__(self):
        self.is_computed = self.is_donated = False

    def is_ready(self):
        assert not self.is_donated
        return self.is_computed

    def is_deleted(self):
        return self.is_donated


@pytest.fixture
def progress():
    return TransportProgress()


def test_a_message_is_sent_when_it_is_computed(progress):
    sender, parts = progress.add_sender(peer=1, program_id=5), [Part(), Part(), Part()]
    for number, part in enumerate(parts):
        sender.note_sent(7, number, [part])
    report = progress.report()
    assert (report.sent, report.num_sent) == ((), {1: 3})
    parts[0].is_computed = parts[2].is_computed = True
    (mark,) = progress.report().sent
    assert (mark.peer, mark.program_id, mark.step, mark.number) == (1, 5, 7, 0)
    assert mark.age_s < 60
    parts[1].is_donated = True
    assert progress.report().sent[0].number == 2


def test_a_wait_is_reported_while_it_lasts(progress):
    first, second = (progress.add_receiver(peer=1, program_id=number) for number in range(2))
    second.begin_wait(3, 4)
    (mark,) = progress.report().waiting
    assert (mark.program_id, mark.step, mark.number) == (1, 3, 4)
    second.end_wait()
    for end in (first, second):
        end.note_received()
    report = progress.report()
    assert (report.waiting, report.num_received) == ((), {1: 2})
