"""Simulation of a cluster: chips event by event (MeshSlice, section 4.1), and pipelines (JaxPP, section 5).

In: `Job`s of a chip, each with its resource and the jobs that it waits for; or a schedule with the `StageCost` of each
stage, or a `Program`, and the links between actors (`link_actors`).
Out: a `Timeline` (`play_jobs`), or a `PipelinePlayback` with times, bubbles and memory (`play_pipeline`,
`play_program`).
"""

from typing import TYPE_CHECKING

from jaxquard._lazy_exports import export_lazily

if TYPE_CHECKING:
    from jaxquard.simulate.actor_link import ActorLink as ActorLink
    from jaxquard.simulate.actor_link import link_actors as link_actors
    from jaxquard.simulate.actor_memory import ActorMemory as ActorMemory
    from jaxquard.simulate.measured_times import measured_call_times as measured_call_times
    from jaxquard.simulate.pipeline_playback import PipelinePlayback as PipelinePlayback
    from jaxquard.simulate.play_jobs import Job as Job
    from jaxquard.simulate.play_jobs import play_jobs as play_jobs
    from jaxquard.simulate.play_jobs import share_memory as share_memory
    from jaxquard.simulate.play_pipeline import play_pipeline as play_pipeline
    from jaxquard.simulate.play_program import play_program as play_program
    from jaxquard.simulate.stage_cost import StageCost as StageCost
else:
    __all__ = export_lazily(
        __name__,
        {
            "actor_link": ["ActorLink", "link_actors"],
            "actor_memory": ["ActorMemory"],
            "measured_times": ["measured_call_times"],
            "pipeline_playback": ["PipelinePlayback"],
            "play_jobs": ["Job", "play_jobs", "share_memory"],
            "play_pipeline": ["play_pipeline"],
            "play_program": ["play_program"],
            "stage_cost": ["StageCost"],
        },
    )
