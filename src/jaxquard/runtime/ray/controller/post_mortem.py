"""What is left of a process that is gone: what it was doing, the last lines of its log, whether memory ran out."""

from dataclasses import dataclass

from jaxquard.runtime.ray.cluster.hosts import HostUnreachable, run_on_host
from jaxquard.runtime.ray.messages import WorkerInfo

_NUM_LINES = 20
_LIMIT_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PostMortem:
    """What its host can tell.

    Attributes:
        activity: the task in hand; empty if the host does not answer.
        log: the tail of its log.
        num_oom_kills: how many processes the host's kernel has killed for their memory, ever.
    """

    activity: str = ""
    log: str = ""
    num_oom_kills: int = 0


def post_mortem(info: WorkerInfo) -> PostMortem:
    """Asks the host of a process."""
    activity_path, log_paths, num_lines = info.activity_path, info.log_paths, _NUM_LINES

    def read() -> tuple[str, str, int]:
        # Sent to another host by value, so everything it needs is inside.
        import os

        def content(path: str, last_bytes: int = 1 << 16) -> str:
            try:
                with open(path, "rb") as file:
                    file.seek(max(0, os.fstat(file.fileno()).st_size - last_bytes))
                    return file.read().decode(errors="replace")
            except OSError:
                return ""

        # Lines with which Ray marks its log files.
        marks = (":job_id:", ":actor_name:", ":task_name:")
        logs = [[x for x in content(path).splitlines() if x and not x.startswith(marks)] for path in log_paths]
        tail = [line for lines in logs for line in lines[-num_lines:]]
        kills = [line.split()[1] for line in content("/proc/vmstat").splitlines() if line.startswith("oom_kill ")]
        return content(activity_path).strip("\0\n "), "\n".join(tail), int(kills[0]) if kills else 0

    try:
        activity, log, num_oom_kills = run_on_host(read, info.node_id, timeout_s=_LIMIT_S)
    except HostUnreachable:
        return PostMortem()
    return PostMortem(activity=activity, log=log, num_oom_kills=num_oom_kills)
