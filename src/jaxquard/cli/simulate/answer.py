"""The answer of `jaxquard simulate`: as data, and as lines for a terminal."""

from typing import TYPE_CHECKING, Any

from jaxquard.cli.simulate.setup import ModelRun, PipelineSetup

if TYPE_CHECKING:
    from jaxquard.ir.timeline import Timeline
    from jaxquard.simulate import PipelinePlayback

_GB = 1e9
# Tables of more actors than these leave out the middle ones.
_MOST_ACTORS = 16


def answer_of(setup: PipelineSetup, playback: "PipelinePlayback", measured: "Timeline | None" = None) -> dict[str, Any]:
    """Returns the answer as plain data."""
    peaks = playback.peaks_bytes
    fullest = max(range(len(peaks)), key=peaks.__getitem__)
    bubbles, busy_s = playback.actor_bubbles, playback.busy_s
    stages: list[list[int]] = [[] for _ in peaks]
    for stage in range(setup.schedule.num_stages):
        stages[setup.schedule.actor_of(stage)].append(stage)
    answer: dict[str, Any] = {
        "schedule": setup.schedule.name,
        "num_stages": setup.schedule.num_stages,
        "num_actors": setup.schedule.num_actors,
        "num_microbatches": setup.num_microbatches,
        "step_time_s": playback.step_time_s,
        "loop_time_s": playback.loop_time_s,
        "bubble": playback.bubble,
        "peak_bytes": peaks[fullest],
        "fullest_actor": fullest,
        "limit_bytes": setup.limit_bytes,
        "fits": None if setup.limit_bytes is None else peaks[fullest] <= setup.limit_bytes,
        "actors": [
            {
                "actor": actor,
                "stages": stages[actor],
                "busy_s": busy_s[actor],
                "bubble": bubbles[actor],
                "peak_bytes": peaks[actor],
                "at_peak_bytes": memory.peak_parts(),
            }
            for actor, memory in enumerate(playback.memory)
        ],
    }
    if setup.run is not None:
        answer |= _utilisation(setup.run, playback.step_time_s)
    if measured is not None:
        from jaxquard.report.timelines.loop_tasks import loop_part

        answer |= {"measured_step_time_s": measured.time_s, "measured_loop_time_s": loop_part(measured).time_s}
    return answer


def _utilisation(run: ModelRun, step_time_s: float) -> dict[str, Any]:
    """Model FLOPs, as Megatron and JaxPP count them, over what the chips could do."""
    par = run.parallelism
    tokens = par.global_batch * run.transformer.seq
    per_chip = tokens * run.transformer.flops_per_token() / par.num_devices / step_time_s
    return {
        "mfu": per_chip / run.cluster.compute.peak_flops_per_s,
        "flops_per_s_per_chip": per_chip,
        "tokens_per_s": tokens / step_time_s,
        "num_chips": par.num_devices,
        "tensor": par.tensor,
        "data": par.data,
        "microbatch_size": par.microbatch,
        "global_batch": par.global_batch,
        "sequence_length": run.transformer.seq,
        "recompute": par.recompute,
        "system": run.system,
    }


def summary_lines(setup: PipelineSetup, answer: dict[str, Any]) -> list[str]:
    """Returns a sentence on the time, one on the memory, and the notes."""
    step_s = answer["step_time_s"]
    words = [f"step {_seconds(step_s)}", f"bubble {100 * answer['bubble']:.1f} % of the loop"]
    outside_s = step_s - answer["loop_time_s"]
    if outside_s > 1e-3 * step_s:
        words.append(f"{_seconds(outside_s)} outside the loop")
    if "mfu" in answer:
        words.append(f"MFU {100 * answer['mfu']:.1f} %")
        words.append(f"{answer['flops_per_s_per_chip'] / 1e12:.0f} TFLOP/s a chip")
        words.append(f"{answer['tokens_per_s']:.0f} tokens/s")
    lines = [", ".join(words) + "."]
    if "measured_step_time_s" in answer:
        loop_s, measured_s = answer["loop_time_s"], answer["measured_loop_time_s"]
        lines.append(
            f"Measured: step {_seconds(answer['measured_step_time_s'])}, its loop {_seconds(measured_s)}; the "
            f"simulated loop takes {loop_s / measured_s:.3f} of that."
        )
    if answer["peak_bytes"]:
        lines.append(_memory_line(setup, answer))
    return [*lines, *setup.notes]


def _memory_line(setup: PipelineSetup, answer: dict[str, Any]) -> str:
    actor, peak = answer["fullest_actor"], answer["peak_bytes"]
    limit = answer["limit_bytes"]
    if limit is None:
        return f"The fullest actor is {actor}, with {peak / _GB:.2f} GB a chip."
    if peak <= limit:
        return f"It fits: the fullest actor is {actor}, with {peak / _GB:.1f} of {limit / _GB:.1f} GB a chip."
    parts = answer["actors"][actor]["at_peak_bytes"]
    largest = max(parts, key=parts.__getitem__)
    return (
        f"It does not fit: actor {actor} needs {peak / _GB:.1f} GB a chip, but there are {limit / _GB:.1f} GB for a "
        f"step: {(peak - limit) / _GB:.1f} GB too much, most of it {largest}. {_advice(setup, largest)}"
    )


def _advice(setup: PipelineSetup, largest: str) -> str:
    run = setup.run
    if run is None:
        return "Use smaller stages, or a schedule that keeps fewer microbatches."
    if largest != "activations":
        return "Use more actors, or a larger --tensor."
    if run.parallelism.recompute != "full":
        return "Use --recompute full, a larger --tensor, or a smaller --microbatch-size."
    return "Use a larger --tensor, more stages, or a smaller --microbatch-size."


def actor_rows(answer: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Returns the header and the rows of the table of actors; of many, the first and the last."""
    actors = answer["actors"]
    # Parts that would be written as nothing are left out.
    parts = [
        part
        for part in actors[0]["at_peak_bytes"]
        if any(actor["at_peak_bytes"][part] >= 0.005 * _GB for actor in actors)
    ]
    header = ["actor", "busy", "bubble", *(["peak GB"] if parts else []), *parts]
    shown = actors if len(actors) <= _MOST_ACTORS else [*actors[: _MOST_ACTORS // 2], *actors[-_MOST_ACTORS // 2 :]]
    rows = []
    for actor in shown:
        sizes = [f"{actor['at_peak_bytes'][part] / _GB:.2f}" for part in parts]
        peak = [f"{actor['peak_bytes'] / _GB:.2f}"] if parts else []
        row = [str(actor["actor"]), _seconds(actor["busy_s"]), f"{100 * actor['bubble']:.1f} %"]
        rows.append(row + peak + sizes)
    if len(shown) < len(actors):
        rows.insert(_MOST_ACTORS // 2, ["...", *[""] * (len(header) - 1)])
    return header, rows


def _seconds(time_s: float) -> str:
    return f"{time_s:.3f} s" if time_s >= 1 else f"{time_s * 1e3:.3g} ms"
