"""The claims that JaxPP makes in words, held against our numbers."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from jaxquard.evaluate.common.claims import Claim, make_claim
from jaxquard.evaluate.jaxpp.figures.tradeoffs import MICROBATCHES, REPEATS, TradeoffPoint
from jaxquard.evaluate.jaxpp.figures.weak_scaling import GPU_COUNTS
from jaxquard.evaluate.jaxpp.reproduce import JaxppReproduction
from jaxquard.evaluate.jaxpp.setup.simulate_step import SPMD


def check_claims(results: JaxppReproduction) -> tuple[Claim, ...]:
    """All that can be read off the figures."""
    repeats, counts = results.circular_repeats, results.microbatch_counts
    return (
        make_claim(
            "2.2.1",
            "1F1B keeps activations in proportion to the stages, GPipe to the microbatches: 2x to 3x less.",
            len(results.kept_activations),
            _kept_exceptions(results),
        ),
        make_claim(
            "4.2, Figure 6",
            "Receiving before and sending after each task can deadlock; a send and its receive issued with the task "
            "that makes the value cannot.",
            len(results.send_orders),
            _order_exceptions(results),
        ),
        make_claim(
            "5.1.1, Figure 7",
            "More circular repeats are faster, up to a point, for every microbatch size.",
            len(MICROBATCHES),
            _repeat_exceptions(repeats),
        ),
        make_claim(
            "5.1.1, Figure 7",
            "Tasks can be too small: with microbatches of 1, stages of one layer are slower than larger ones.",
            1,
            _small_task_exceptions(repeats),
        ),
        make_claim(
            "5.1.1, Figure 7",
            "Larger microbatches have a larger bubble and are faster all the same.",
            len(REPEATS) * (len(MICROBATCHES) - 1),
            _size_exceptions(repeats),
        ),
        make_claim(
            "5.1.2, Figure 8",
            "More microbatches raise the utilisation, for every microbatch size.",
            len(counts) - len(MICROBATCHES),
            _count_exceptions(counts),
        ),
        make_claim(
            "5.1.3, Figure 9",
            "JaxPP is faster than FSDP at every size, and loses less from 64 to 1,024 GPUs.",
            len(GPU_COUNTS) + 1,
            _scaling_exceptions(results),
        ),
        make_claim(
            "5.2, Figure 10",
            "JaxPP is faster than FSDP and than the SPMD pipeline; NeMo is faster than JaxPP. For both models.",
            5,
            _system_exceptions(results),
        ),
        make_claim(
            "5.3, Figure 11",
            "Rematerialisation is the largest part of what the SPMD pipeline loses; synchronous sends lose too.",
            2,
            _breakdown_exceptions(results),
        ),
    )


def _kept_exceptions(results: JaxppReproduction) -> Iterable[str]:
    first = results.kept_activations[0]
    for kept in results.kept_activations:
        if kept.one_f_one_b != first.one_f_one_b or kept.gpipe != kept.num_microbatches:
            yield f"{kept.num_microbatches} microbatches: {kept.gpipe} and {kept.one_f_one_b}"


def _order_exceptions(results: JaxppReproduction) -> Iterable[str]:
    if all(order.naive_done == 1 for order in results.send_orders):
        yield "the naive order never locks"
    for order in results.send_orders:
        if order.paired_done < 1:
            yield f"{order.schedule}: JaxPP's order locks"


def _of_size(points: Sequence[TradeoffPoint], microbatch: int) -> list[TradeoffPoint]:
    return [point for point in points if point.microbatch == microbatch]


def _repeat_exceptions(points: Sequence[TradeoffPoint]) -> Iterable[str]:
    """Exceptions: no repeat is faster than one, or the speed falls and rises again."""
    for size in MICROBATCHES:
        speeds = [point.ours.tflops for point in _of_size(points, size)]
        best = speeds.index(max(speeds))
        rises = all(after >= before for before, after in pairwise(speeds[: best + 1]))
        falls = all(after <= before for before, after in pairwise(speeds[best:]))
        if best == 0 or not (rises and falls):
            yield f"microbatches of {size}: {', '.join(f'{speed:.0f}' for speed in speeds)} TFLOPS"


def _small_task_exceptions(points: Sequence[TradeoffPoint]) -> Iterable[str]:
    speeds = {point.repeat: point.ours.tflops for point in _of_size(points, 1)}
    if max(speeds.values()) == speeds[max(speeds)]:
        yield f"{max(speeds)} repeats are the fastest, with {speeds[max(speeds)]:.0f} TFLOPS"


def _size_exceptions(points: Sequence[TradeoffPoint]) -> Iterable[str]:
    found = {(point.repeat, point.microbatch): point.ours for point in points}
    for repeat in REPEATS:
        for small, large in pairwise(MICROBATCHES):
            less, more = found[repeat, small], found[repeat, large]
            if more.tflops <= less.tflops or more.bubble <= less.bubble:
                speeds = f"{less.tflops:.0f} to {more.tflops:.0f} TFLOPS"
                recomputed = f", {more.recompute_share:.0%} of layers recomputed" if more.recompute_share else ""
                yield f"circular repeat {repeat}, microbatches of {small} to {large}: {speeds}{recomputed}"


def _count_exceptions(points: Sequence[TradeoffPoint]) -> Iterable[str]:
    for size in MICROBATCHES:
        for less, more in pairwise(_of_size(points, size)):
            if more.ours.tflops <= less.ours.tflops:
                yield f"microbatches of {size}, {less.num_microbatches} to {more.num_microbatches}"


def _scaling_exceptions(results: JaxppReproduction) -> Iterable[str]:
    found = {(point.system, point.num_gpus): point.ours.tflops for point in results.weak_scaling}
    for num_gpus in GPU_COUNTS:
        if found["JaxPP", num_gpus] <= found["JAX FSDP", num_gpus]:
            yield f"{num_gpus} GPUs: {found['JaxPP', num_gpus]:.0f} and {found['JAX FSDP', num_gpus]:.0f} TFLOPS"
    kept = {system: found[system, GPU_COUNTS[-1]] / found[system, GPU_COUNTS[0]] for system in ("JaxPP", "JAX FSDP")}
    if kept["JaxPP"] <= kept["JAX FSDP"]:
        yield f"efficiency {100 * kept['JaxPP']:.1f} % and {100 * kept['JAX FSDP']:.1f} %"


def _system_exceptions(results: JaxppReproduction) -> Iterable[str]:
    times_s = {(row.paper.system, row.paper.model, row.paper.num_gpus): row.ours.step_time_s for row in results.table_1}
    for model, num_gpus in (("GPT3-175B", 128), ("Llama2-70B", 64)):
        jaxpp_s = times_s["JaxPP", model, num_gpus]
        for system in ("JAX FSDP", SPMD, "NeMo"):
            other_s = times_s.get((system, model, num_gpus))
            if other_s is not None and (other_s <= jaxpp_s) != (system == "NeMo"):
                yield f"{model}: {system} {other_s:.2f} s, JaxPP {jaxpp_s:.2f} s"


def _breakdown_exceptions(results: JaxppReproduction) -> Iterable[str]:
    parts = results.breakdown
    if parts.recompute_s < max(parts.sends_s, parts.rest_s):
        yield f"recomputation {parts.recompute_s:.2f} s, sends {parts.sends_s:.2f} s, the rest {parts.rest_s:.2f} s"
    if parts.sends_s <= 0:
        yield "asynchronous sends save nothing"
