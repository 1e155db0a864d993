"""Processes of one kind, which start when they are first needed and then wait for more."""

import logging
import queue
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from jaxquard.pricing.end_of_time import OutOfTimeError, StalledError, check_time
from jaxquard.pricing.workers.serve import Reply
from jaxquard.pricing.workers.worker import NotStartedError, PricingProcess, WorkerEndedError

_log = logging.getLogger(__name__)


class WorkerPool:
    """Processes that answer requests, each one at a time.

    A request that ends or stalls its process takes only that with it; the next one gets another. Where none can start,
    there are no more tries.

    Args:
        start: starts a process.
        limit_s: that a request may take.
    """

    def __init__(self, start: Callable[[], PricingProcess], *, num_workers: int, limit_s: float) -> None:
        self._start, self._limit_s = start, limit_s
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="worker")
        self._idle: queue.SimpleQueue[PricingProcess] = queue.SimpleQueue()
        self._workers: list[PricingProcess] = []
        self._broken: NotStartedError | None = None
        self.stop = weakref.finalize(self, _stop, self._workers, self._threads)

    def submit(self, request: object, *, end_s: float) -> "Future[tuple[Reply, bytes]]":
        """Begins to answer a request; the result is the reply and what the process wrote meanwhile.

        It raises as `PricingProcess.ask` does, and WorkerEndedError for a request that went wrong.
        """
        return self._threads.submit(self._ask, request, end_s)

    def _ask(self, request: object, end_s: float) -> tuple[Reply, bytes]:
        check_time(end_s)
        worker = self._find_idle()
        try:
            found = worker.ask(request, limit_s=self._limit_s, end_s=end_s)
        except (WorkerEndedError, NotStartedError, StalledError, OutOfTimeError) as error:
            worker.kill()
            self._workers.remove(worker)
            if isinstance(error, NotStartedError):
                self._give_up(error)
            raise
        said = worker.take_log()
        self._idle.put(worker)
        return found, said

    def _find_idle(self) -> PricingProcess:
        try:
            return self._idle.get_nowait()
        except queue.Empty:
            pass
        if self._broken is not None:
            raise self._broken
        try:
            worker = self._start()
        except NotStartedError as error:
            self._give_up(error)
            raise
        self._workers.append(worker)
        if not self.stop.alive:  # It was stopped meanwhile.
            worker.kill()
        return worker

    def _give_up(self, error: NotStartedError) -> None:
        if self._broken is None and self.stop.alive:
            self._broken = error
            _log.warning("no more processes: %s", error)


def _stop(workers: list[PricingProcess], threads: ThreadPoolExecutor) -> None:
    threads.shutdown(wait=False, cancel_futures=True)
    for worker in list(workers):
        worker.kill()
