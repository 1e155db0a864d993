"""Plays jobs on a cluster's resources, event by event, into a timeline."""

from jaxquard.simulate.jobs import Job as Job
from jaxquard.simulate.play_jobs import play_jobs as play_jobs
from jaxquard.simulate.share_memory import share_memory as share_memory
