"""The time of a pipeline whose actors share the cores of a host.

A task has its price while all actors run. In a bubble the others have the cores of the actor that waits, so time passes
faster there, until an actor is as fast as alone. All that run at a time run equally fast: so their order stays as it
was played, and each interval of the playback takes its time over the speed of those that run in it.
"""

import numpy as np

from jaxquard.simulate.pipeline_playback import PipelinePlayback


def find_shared_time(played: PipelinePlayback, *, alone_share: float) -> float:
    """Returns the seconds of a played step on the cores of a host.

    Args:
        alone_share: what a task takes while its actor alone runs, of its price.
    """
    times_s = np.concatenate([[0.0], played.starts_s, played.ends_s, [played.step_time_s]])
    changes = np.concatenate([[0], np.ones(len(played.starts_s)), -np.ones(len(played.ends_s)), [0]])
    order = np.argsort(times_s, kind="stable")
    num_running = np.cumsum(changes[order])[:-1]
    num_actors = len(played.bounds) - 1
    shares = np.where(num_running > 0, np.maximum(alone_share, num_running / num_actors), 1.0)
    return float((np.diff(times_s[order]) * shares).sum())
