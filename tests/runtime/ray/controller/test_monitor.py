"""Missing heartbeats, without any process."""

from types import SimpleNamespace

from jaxquard.runtime.ray.controller.monitor import Monitor, _Pulse
from jaxquard.runtime.ray.controller.worker_group import WorkerProcess


def test_a_process_that_starts_needs_no_heartbeat():
    """The machine is slow: it takes longer to come up than the heartbeat timeout."""
    lost = []
    monitor = Monitor(
        SimpleNamespace(), timeout_s=3.0, on_lost=lambda worker, how: lost.append(how), on_tick=lambda: None
    )
    worker, pulse = WorkerProcess(actor=0, rank=0, handle=SimpleNamespace()), _Pulse()
    monitor._note_missing_heartbeat(worker, pulse, 10.0)
    worker.is_started = True
    monitor._note_missing_heartbeat(worker, pulse, 2.0)
    assert not lost
    monitor._note_missing_heartbeat(worker, pulse, 2.0)
    assert lost == ["has sent no heartbeat for 4 s"]
