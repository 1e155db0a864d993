"""The host time of simulating pipelines: 64 stages and 1,024 microbatches, and a program of as many instructions.

In seconds of processor time, from the minimum to the maximum of several runs; memory over time is part of it. The tests
hold 1 s for the schedule.
"""

import time
from collections.abc import Callable

from jaxquard.ir.array_type import ArrayType
from jaxquard.ir.program import ActorProgram, Call, Free, Instruction, Program, Recv, Run, Send
from jaxquard.schedules import Interleaved, OneFOneB, Schedule, ZeroBubbleV
from jaxquard.simulate import ActorLink, StageCost, play_pipeline, play_program

_NUM_TIMES = 5
_NUM_STAGES, _NUM_MICROBATCHES = 64, 1024
_PROGRAM_ACTORS, _PROGRAM_MICROBATCHES = 16, 512


def main() -> None:
    """Prints the seconds of each, beside what is wanted."""
    cost = StageCost(
        forward_s=1e-3,
        input_gradient_s=1e-3,
        weight_gradient_s=1e-3,
        output_bytes=10**6,
        weight_bytes=10**9,
        gradient_bytes=10**9,
        activation_bytes=10**7,
    )
    link = ActorLink(latency_s=1e-5, bandwidth_bytes_per_s=50e9)
    links = {(a, b): link for a in range(_NUM_STAGES) for b in range(_NUM_STAGES) if a != b}
    for schedule in (OneFOneB(_NUM_STAGES), Interleaved(_NUM_STAGES, 8), ZeroBubbleV(_NUM_STAGES)):
        _report(
            f"{schedule!r}, {_NUM_MICROBATCHES} microbatches",
            lambda schedule=schedule: _play(schedule, cost, links),
            wanted_s=1,
        )
    program = forward_program(_PROGRAM_ACTORS, _PROGRAM_MICROBATCHES)
    count = sum(len(actor.instructions) for actor in program.actors)
    _report(f"a program of {count} instructions", lambda: play_program(program, [1e-3], links=links))


def _play(schedule: Schedule, cost: StageCost, links: dict[tuple[int, int], ActorLink]) -> object:
    return play_pipeline(schedule, [cost] * _NUM_STAGES, num_microbatches=_NUM_MICROBATCHES, links=links)


def forward_program(num_actors: int, num_microbatches: int) -> Program:
    """Returns a program in which each actor receives, runs, sends and frees a value for every microbatch."""
    value = ArrayType(dtype="float32", shape=(256, 256))
    actors = []
    for actor in range(num_actors):
        instructions: list[Instruction] = []
        for microbatch in range(num_microbatches):
            start, end = 2 * microbatch, 2 * microbatch + 1
            if actor:
                instructions.append(Recv(slots=(start,), source=actor - 1))
            instructions.append(
                Run(task=f"{actor}F{microbatch}", call=0, inputs=(start,) if actor else (), outputs=(end,))
            )
            if actor + 1 < num_actors:
                instructions.append(Send(slots=(end,), target=actor + 1))
            instructions.append(Free(slots=(start, end) if actor else (end,)))
        actors.append(ActorProgram(types=(value,) * (2 * num_microbatches), instructions=tuple(instructions)))
    call = Call(name="stage", inputs=(), outputs=(value,))
    return Program(calls=(call,), actors=tuple(actors))


def _report(what: str, run: Callable[[], object], *, wanted_s: float | None = None) -> None:
    times_s = []
    for _ in range(_NUM_TIMES):
        start_s = time.process_time()
        run()
        times_s.append(time.process_time() - start_s)
    wanted = "" if wanted_s is None else f" (wanted: at most {wanted_s:g} s)"
    print(f"{what}: {min(times_s):.2f} to {max(times_s):.2f} s{wanted}")


if __name__ == "__main__":
    main()
