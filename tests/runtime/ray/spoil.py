"""Makes a task fail inside an actor's process: what `call_inside` is given to run there."""

import time
from pathlib import Path


def fail_in(process, task, after=None):
    """The next time that a task starts, it fails; once a file exists, if its path is given."""
    write = type(process._activity).write

    class Spoiled(type(process._activity)):
        def write(self, text):
            write(self, text)
            if text == task:
                mend(process)
                while after is not None and not Path(after).exists():
                    time.sleep(0.01)
                raise ValueError("out of ink")

    process._activity.__class__ = Spoiled


def mend(process):
    from jaxquard.runtime.ray.worker.self_report import ActivityFile

    process._activity.__class__ = ActivityFile
