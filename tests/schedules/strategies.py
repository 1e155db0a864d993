"""Schedules for Hypothesis to draw from."""

from hypothesis import settings
from hypothesis import strategies as st

from jaxquard.schedules import (
    DualPipeV,
    EagerOneFOneB,
    GPipe,
    Interleaved,
    LoopedBFS,
    OneFOneB,
    Schedule,
    ZeroBubbleH1,
    ZeroBubbleH2,
    ZeroBubbleV,
)

# Playing a small schedule takes a millisecond, so these tests can afford more than the profile has.
MANY = settings(max_examples=max(150, settings.default.max_examples))


@st.composite
def schedules(draw, max_actors: int = 6) -> Schedule:
    kind = draw(
        st.sampled_from(
            [
                GPipe,
                OneFOneB,
                EagerOneFOneB,
                Interleaved,
                LoopedBFS,
                ZeroBubbleH1,
                ZeroBubbleH2,
                ZeroBubbleV,
                DualPipeV,
            ]
        )
    )
    num_actors = draw(st.integers(1, max_actors))
    if kind in (Interleaved, LoopedBFS):
        return kind(num_actors * draw(st.integers(1, 3)), num_actors)
    return kind(2 * num_actors if kind in (ZeroBubbleV, DualPipeV) else num_actors)


microbatch_counts = st.integers(1, 14)
