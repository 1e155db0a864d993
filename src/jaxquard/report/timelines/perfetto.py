"""A timeline as a trace that Perfetto (ui.perfetto.dev) and chrome://tracing open.

Chrome's JSON trace format: a process per actor, in it a track for compute and one for transfers, both named;
each span is a complete event ("X") with start and duration in microseconds.
"""

import json
from pathlib import Path
from typing import Any

from jaxquard.errors import ScheduleError
from jaxquard.ir.timeline import Span, Timeline, Track

_TRACKS = {Track.COMPUTE: 0, Track.TRANSFER: 1}


def write_perfetto(timeline: Timeline) -> str:
    """The trace as JSON text, to be saved as `NAME.pftrace.json`."""
    events = [event for actor in range(timeline.num_actors) for event in _names(actor)]
    events += [_complete_event(span) for span in timeline.spans]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, indent=1)


def _names(actor: int) -> list[dict[str, Any]]:
    """Metadata events: what the actor and its tracks are called, and their order."""
    events = [
        _metadata("process_name", actor, 0, {"name": f"actor {actor}"}),
        _metadata("process_sort_index", actor, 0, {"sort_index": actor}),
    ]
    for track, number in _TRACKS.items():
        events.append(_metadata("thread_name", actor, number, {"name": track.value}))
        events.append(_metadata("thread_sort_index", actor, number, {"sort_index": number}))
    return events


def _metadata(name: str, process: int, thread: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": arguments}


def _complete_event(span: Span) -> dict[str, Any]:
    event: dict[str, Any] = {
        "ph": "X",
        "name": span.name,
        "cat": span.track.value,
        "pid": span.actor,
        "tid": _TRACKS[span.track],
        "ts": span.start_s * 1e6,
        "dur": span.time_s * 1e6,
    }
    if span.size_bytes:
        event["args"] = {"size_bytes": span.size_bytes}
    return event


def read_perfetto(path: Path) -> Timeline:
    """Reads a trace that `write_perfetto` wrote.

    Raises:
        ScheduleError: if the file cannot be read, or is no such trace.
    """
    try:
        events = json.loads(path.read_text())["traceEvents"]
        spans = [_read_event(event) for event in events if event["ph"] == "X"]
        actors = [event["pid"] for event in events]
    except OSError as error:
        raise ScheduleError(f"cannot read the trace {path} ({error.strerror}). Give one that jaxquard wrote.") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ScheduleError(f"{path} is no trace of jaxquard. Give one that jaxquard demo --out wrote.") from None
    if not spans:
        raise ScheduleError(f"{path} is a trace in which nothing ran. Give the trace of a step.")
    spans.sort(key=lambda span: (span.start_s, span.actor, span.track.value))
    return Timeline(num_actors=1 + max(actors), spans=tuple(spans))


def _read_event(event: dict[str, Any]) -> Span:
    start_s = float(event["ts"]) / 1e6
    return Span(
        actor=int(event["pid"]),
        track=Track(event["cat"]),
        name=str(event["name"]),
        start_s=start_s,
        end_s=start_s + float(event["dur"]) / 1e6,
        size_bytes=int(event.get("args", {}).get("size_bytes", 0)),
    )
