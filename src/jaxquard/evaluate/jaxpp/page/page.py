"""The page: the paper's results beside ours, in the order of the paper."""

from collections.abc import Callable, Sequence

from jaxquard.evaluate.common.claims import claim_table
from jaxquard.evaluate.common.headlines import headline_table, span_in_unit, verdict_counts
from jaxquard.evaluate.common.numbers import percent
from jaxquard.evaluate.jaxpp.claims import check_claims
from jaxquard.evaluate.jaxpp.figures.table_1 import setup_of_row
from jaxquard.evaluate.jaxpp.figures.tradeoffs import MICROBATCHES, TradeoffPoint
from jaxquard.evaluate.jaxpp.headlines import VERDICTS
from jaxquard.evaluate.jaxpp.page.page_figures import (
    draw_breakdown,
    draw_bubbles,
    draw_open_headlines,
    draw_systems,
    draw_tradeoffs,
    draw_weak_scaling,
)
from jaxquard.evaluate.jaxpp.reproduce import JaxppReproduction
from jaxquard.evaluate.jaxpp.setup.assumptions import NOMINAL
from jaxquard.evaluate.jaxpp.setup.simulate_step import play_setup
from jaxquard.report.html_page import html_charts, html_page, html_paragraph, html_section, html_table
from jaxquard.report.timelines.timeline_svg import timeline_svg

TITLE = "JaxPP (MLSys 2025), redone by jaxquard"


def jaxpp_page(results: JaxppReproduction) -> str:
    """One HTML page that needs nothing else."""
    sections = [
        _headlines(results),
        _claims(results),
        _table_1(results),
        _figure_6(results),
        *_section_51(results),
        *_sections_52_and_53(results),
        _timeline(results),
        _method(),
    ]
    return html_page(TITLE, _intro(results), sections)


def _intro(results: JaxppReproduction) -> str:
    errors = sorted(abs(row.error) for row in results.table_1)
    return html_paragraph(
        f"{verdict_counts(results.headlines, VERDICTS)}. Of the {len(errors)} steps of Table 1 the median error is "
        f"{percent(errors[len(errors) // 2])}, the largest {percent(errors[-1])}. All of ours is simulated: stages are "
        "priced by their shapes, and their schedule is played on 8-GPU hosts of H100s with InfiniBand; nothing ran on "
        "a GPU. The points of the paper's figures carry no numbers, so diamonds stand only where Table 1 has one."
    )


def _headlines(results: JaxppReproduction) -> str:
    bands = [span_in_unit(headline.band, headline.paper.unit) for headline in results.headlines]
    return html_section(
        "headlines",
        "Headlines",
        html_paragraph(
            f"Ours: {NOMINAL.label}. Band: 4-way or 8-way tensor parallelism for JaxPP on GPT-3 (the text and Table 1 "
            "disagree), stages of 1, 2 or 5 layers where the circular repeat is not given, and 0.3 ms or nothing for "
            "the dispatch of a task. A headline reproduces if ours is within 10 % of it, or a share within one point."
        ),
        f'<div class="wide">{draw_open_headlines(results.headlines)}</div>',
        headline_table(results.headlines, why="what it depends on", columns={"band": bands}),
    )


def _claims(results: JaxppReproduction) -> str:
    return html_section("claims", "What the paper says in words", claim_table(check_claims(results)))


def _table_1(results: JaxppReproduction) -> str:
    header = ["system", "model", "GPUs", "PP", "TP", "DP x FSDP", "batch", "paper", "ours", "error", "band"]
    header += ["paper TFLOPS", "ours", "bubble", "recomputed", "memory"]
    rows = []
    for step in results.table_1:
        row, ours = step.paper, step.ours
        configuration = [
            row.system,
            row.model.replace("-", "\u2011"),
            f"{row.num_gpus}",
            f"{row.pipeline}",
            f"{row.tensor}",
        ]
        configuration += [f"{row.data} x {row.fsdp}", f"{row.global_batch}"]
        times = [f"{row.step_time_s:.2f} s", f"{ours.step_time_s:.2f} s", f"{100 * step.error:+.1f} %"]
        speeds = [span_in_unit(step.band_s, "s"), f"{row.tflops:.0f}", f"{ours.tflops:.0f}", percent(ours.bubble)]
        memory = [f"{100 * ours.recompute_share:.0f} %", f"{ours.peak_bytes / 1e9:.0f} GB"]
        rows.append([*configuration, *times, *speeds, *memory])
    return html_section(
        "table-1",
        "Table 1: training performance",
        html_paragraph(
            "Recomputed: the smallest share of layers with which the step fits 80 GB, less what the framework keeps "
            "for itself. FSDP has no pipeline and is priced in closed form; all others are played."
        ),
        html_table(header, rows, words=(0, 1)),
    )


def _figure_6(results: JaxppReproduction) -> str:
    rows = [
        [
            order.schedule,
            f"{order.num_microbatches}",
            "runs" if order.naive_done == 1 else f"locks after {100 * order.naive_done:.0f} % of its operations",
            "runs" if order.paired_done == 1 else f"locks after {100 * order.paired_done:.0f} %",
        ]
        for order in results.send_orders
    ]
    return html_section(
        "figure-6",
        "Figure 6: the order of sends and receives",
        html_paragraph(
            "Naive: a task receives, runs, sends. JaxPP's: a send and its receive are issued with the task that makes "
            "the value, in an order of all tasks. Sends and receives of two actors happen in the order in which both "
            "issue them, as in a NCCL communicator."
        ),
        html_table(["schedule", "microbatches", "naive order", "JaxPP's order"], rows, words=(0, 2, 3)),
    )


def _section_51(results: JaxppReproduction) -> list[str]:
    return [
        html_section(
            "figure-7",
            "Figure 7: circular repeats and microbatch sizes",
            html_paragraph(
                "GPT-3 175B on 64 GPUs (8 actors, 8-way tensor parallelism), global batch 128. A pointer on a dot "
                "shows what it recomputes."
            ),
            html_charts(
                draw_tradeoffs("Speed", results.circular_repeats, "circular repeats", lambda point: point.repeat),
                draw_bubbles("Bubble", results.circular_repeats, "circular repeats", lambda point: point.repeat),
            ),
            _tradeoff_table(results.circular_repeats, "circular repeats", lambda point: point.repeat),
        ),
        html_section(
            "figure-8",
            "Figure 8: numbers of microbatches",
            html_paragraph("The same with a circular repeat of 6; the global batch grows with the microbatches."),
            html_charts(
                draw_tradeoffs(
                    "Speed", results.microbatch_counts, "microbatches", lambda point: point.num_microbatches
                ),
                draw_bubbles("Bubble", results.microbatch_counts, "microbatches", lambda point: point.num_microbatches),
            ),
            _tradeoff_table(results.microbatch_counts, "microbatches", lambda point: point.num_microbatches),
        ),
        html_section(
            "figure-9",
            "Figure 9: weak scaling",
            html_paragraph(
                "Replicas are played once, whatever their number; they add a longer sum of gradients and the jitter of "
                "many hosts."
            ),
            html_charts(draw_weak_scaling(results.weak_scaling)),
        ),
    ]


def _tradeoff_table(points: Sequence[TradeoffPoint], name: str, column_of: Callable[[TradeoffPoint], int]) -> str:
    """TFLOPS a GPU, a row for each microbatch size; with the share of layers that are recomputed, if any."""
    columns = sorted({column_of(point) for point in points})
    rows = []
    for size in MICROBATCHES:
        found = {column_of(point): point.ours for point in points if point.microbatch == size}
        cells = [
            f"{found[column].tflops:.0f}"
            + (f" ({100 * found[column].recompute_share:.0f} %)" if found[column].recompute_share else "")
            for column in columns
        ]
        rows.append([f"microbatches of {size}", *cells])
    header = [f"TFLOPS (recomputed), by {name}", *map(str, columns)]
    return html_table(header, rows)


def _sections_52_and_53(results: JaxppReproduction) -> list[str]:
    return [
        html_section("figure-10", "Figure 10: systems compared", html_charts(draw_systems(results.table_1))),
        html_section(
            "figure-11",
            "Figure 11: what the SPMD pipeline loses",
            html_paragraph(
                "The SPMD pipeline's step with asynchronous sends instead of synchronous ones, then with nothing "
                "recomputed, as if it all fitted the memory; the rest is what its schedule, its 128 microbatches and "
                "its 4-way tensor parallelism make of it."
            ),
            html_charts(draw_breakdown(results.breakdown)),
        ),
    ]


def _timeline(results: JaxppReproduction) -> str:
    playback = play_setup(setup_of_row(results.paper.row("JaxPP"), NOMINAL))
    return html_section(
        "timeline",
        "The simulated step of JaxPP, GPT-3 175B on 128 GPUs",
        html_paragraph("48 stages on 8 actors, 32 microbatches. A pointer that rests on a task shows its name."),
        f'<div class="wide">{timeline_svg(playback.timeline, title="simulated")}</div>',
    )


def _method() -> str:
    return html_section(
        "method",
        "How",
        html_paragraph(
            "Stages are priced by the model pricer: each product by its shape, attention by its kernel, collectives by "
            "the levels of the cluster, with constants of the system (JaxPP, NeMo, ...) and of the chip that are the "
            "same for every step. The schedule is played task by task with a link for each pair of actors. Synchronous "
            "sends stop the actors at both ends. Constants of the systems were fitted to published steps, those of "
            "Table 1 among them: that steps come out is weak evidence, that quotients and shares do is better."
        ),
    )
