from tests import machine_pace


def test_a_limit_grows_with_the_time_of_the_same_work(monkeypatch):
    clock = iter([0.0, 5 * 0.11])
    monkeypatch.setattr(machine_pace.time, "process_time", lambda: next(clock))
    assert machine_pace.machine_pace() == 5.0


def test_a_limit_does_not_shrink(monkeypatch):
    clock = iter([0.0, 0.01])
    monkeypatch.setattr(machine_pace.time, "process_time", lambda: next(clock))
    assert machine_pace.machine_pace() == 1.0
