"""The numbers of a played schedule in a line of words."""

from jaxquard.schedules.play import Playback


def schedule_caption(playback: Playback) -> str:
    """Time, bubble and peak activations: `time 69, bubble 30.4 %, at most 8 activations (actor 0)`."""
    bubble = f"bubble {_percent(playback.bubble)}"
    if _percent(playback.period_bubble) != _percent(playback.bubble):
        bubble += f" ({_percent(playback.period_bubble)} when steps follow each other without a barrier)"
    peak = max(playback.peak_activations)
    actors = [actor for actor, count in enumerate(playback.peak_activations) if count == peak]
    where = "every actor" if len(actors) == len(playback.peak_activations) > 1 else f"actor {actors[0]}"
    kept = f"at most {peak} activation{'' if peak == 1 else 's'} kept ({where})"
    return f"time {playback.makespan_s:g}, {bubble}, {kept}"


def _percent(share: float) -> str:
    return f"{abs(share) * 100:.1f} %"
