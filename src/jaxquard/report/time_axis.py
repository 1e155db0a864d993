"""Round times for the axis of a drawing."""


def tick_times(makespan_s: float, *, width_per_s: float, spacing: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten, at least `spacing` apart on the page.

    Args:
        makespan_s: where the axis ends.
        width_per_s: columns, or other units of the page, that a second takes.
        spacing: how many of these units two ticks must have between them.
    """
    steps = (digit * 10.0**power for power in range(-15, 16) for digit in (1, 2, 5))
    step_s = next(step for step in steps if step * width_per_s >= spacing)
    return [tick * step_s for tick in range(int(makespan_s / step_s + 1e-9) + 1)]
