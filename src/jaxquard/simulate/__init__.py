"""Plays jobs on a cluster's resources, event by event, into a timeline."""

from .jobs import Job as Job
from .play_jobs import play_jobs as play_jobs
from .share_memory import share_memory as share_memory
