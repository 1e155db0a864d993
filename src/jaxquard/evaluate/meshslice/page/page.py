"""The page: the paper's results beside ours, in the order of the paper."""

from jaxquard.evaluate.common.claims import claim_table
from jaxquard.evaluate.common.headlines import verdict_counts
from jaxquard.evaluate.common.numbers import percent
from jaxquard.evaluate.meshslice.claims import check_claims
from jaxquard.evaluate.meshslice.figures.layer_communication import mean_error
from jaxquard.evaluate.meshslice.figures.product_shapes import mean_gain
from jaxquard.evaluate.meshslice.figures.what_runs import fastest
from jaxquard.evaluate.meshslice.headlines import VERDICTS, is_near
from jaxquard.evaluate.meshslice.page.page_figures import (
    draw_communication,
    draw_layer_communication,
    draw_mesh_shapes,
    draw_product_shapes,
    draw_scaling,
    draw_slice_counts,
    paper_utilisations,
)
from jaxquard.evaluate.meshslice.page.page_tables import (
    banded_table,
    beyond_table,
    constants_table,
    dataflow_table_html,
    draw_headlines,
    reading_table,
    real_mesh_table,
    running_table,
    set_table,
    traffic_table,
)
from jaxquard.evaluate.meshslice.paper import Paper
from jaxquard.evaluate.meshslice.reproduce import Reproduction
from jaxquard.evaluate.meshslice.setup.constant_sets import SIMULATION, constant_set, constant_sets
from jaxquard.evaluate.meshslice.setup.labels import MODEL_LABELS
from jaxquard.evaluate.meshslice.setup.models import MODELS
from jaxquard.evaluate.meshslice.setup.other_layers import other_layers_time_s
from jaxquard.report.html_page import html_charts, html_page, html_paragraph, html_section

TITLE = "MeshSlice (ISCA '25), redone by jaxquard"


def meshslice_page(results: Reproduction) -> str:
    """One HTML page that needs nothing else."""
    sections = [
        *_overview(results),
        _readings(results),
        *_section_51(results),
        *_section_52(results),
        *_section_53(results),
        _section_7(results),
        _what_runs(results),
        _beyond(results),
        _method(results),
    ]
    return html_page(TITLE, _intro(results), sections)


def _intro(results: Reproduction) -> str:
    counts = verdict_counts(results.headlines, VERDICTS)
    return html_paragraph(
        f"{counts}. All of ours is computed: closed forms of section 3.2.2 and, where said, an event "
        "simulation; nothing ran on a TPU. No single set of constants gives every headline. The bars of the paper's "
        "figures carry no numbers in its text, so diamonds stand only where the text gives or implies one."
    )


def _overview(results: Reproduction) -> list[str]:
    return [
        html_section(
            "headlines",
            "Headlines",
            html_paragraph(
                "Ours: the authors' own constants (simulation set, SendRecv both ways; for section 5.3 the main set, "
                "one way; each SendRecv with a launch). Band: both measured sets, each with SendRecv one way and both "
                "ways, and with a launch for each SendRecv or one for a chain; beside it stands which set gives which "
                "end. A headline reproduces if ours is within 10 % of it, as near as the authors "
                "calibrate their simulator (4.1). Fitted constants were chosen to meet the headlines: that they do is "
                "no evidence, and they are outside the band."
            ),
            f'<div class="wide">{draw_headlines(results.headlines)}</div>',
            banded_table(results.headlines),
        ),
        html_section(
            "claims",
            "What the paper says in words",
            html_paragraph(
                "With the simulation set and SendRecv both ways, a launch each; on the right the same with other "
                "assumptions about SendRecv, with the number of exceptions."
            ),
            claim_table(
                check_claims(results),
                elsewhere={figures.sendrecv: check_claims(results, figures) for figures in results.other_sendrecvs},
            ),
        ),
    ]


def _readings(results: Reproduction) -> str:
    return html_section(
        "readings",
        "Why the losses and the gains over Wang come out otherwise",
        html_paragraph(
            "Known: the batches, the rules of sections 3.2 and 4.2 to 4.4, and the constants in the authors' public "
            "code. Assumed, since neither the text nor the code says: whether a SendRecv uses a link one way or both, "
            "how often the SendRecvs of an iteration are launched, which bandwidths the simulator itself had, how a "
            "ring is unrolled to a slice count that does not divide it, and which matrix stays put on 16 chips. Below, "
            "the simulation set, SendRecv both ways unless said."
        ),
        html_paragraph(
            "Efficiency lost from 16 to 256 chips. By the paper's rule the largest matrix stays put. On 16 chips "
            "Megatron has 8 × 2,048 = 16,384 rows, fewer than its hidden width of 20,480, so there W is the largest; "
            "keeping it makes 16 chips faster and the loss greater, while 256 chips stay as they are. Keeping Y or X "
            "there too, with one slice count a layer, is what a model of fixed dataflows gives. The paper's own "
            "numbers imply " + _small_utilisations(results) + "."
        ),
        reading_table("loss", results.readings, results.paper),
        html_paragraph(
            "Gain over Wang. Neither the number of links nor the rules of overlap differ between these lines, and "
            "MeshSlice, which never sends with SendRecv, is the same in all. What differs is how long a SendRecv takes "
            "beside the AllGather that MeshSlice uses, and how often one is launched. With SendRecv both ways a "
            "ring of SendRecvs is faster than an AllGather over the same links, which favours Wang. Ours launches each "
            "SendRecv by itself: that is what our Wang runs, and of Wang the paper says that it has extra launch "
            "overhead to call multiple SendRecvs (5.1.2). The authors' cost model has no Wang; in it a ring of "
            "SendRecvs has a launch for each, and Cannon's skew one for all of its steps. With one launch an iteration "
            "the gains are too small both ways and too great one way; with one for each, Megatron's gains and the mean "
            "of 16 products come out, and GPT-3's do not. " + _met_words(results)
        ),
        reading_table("over_wang", results.readings, results.paper),
    )


def _met_words(results: Reproduction) -> str:
    """Counts the readings within the tolerance of the paper's gains over Wang: of each model, of both."""
    found = [reading for reading in results.readings if reading.headline == "over_wang"]
    met = {
        model: {
            reading.text
            for reading in found
            if is_near(reading.percents[model], results.paper.value(f"over_wang_{model}"))
        }
        for model in MODEL_LABELS
    }
    counts = " and ".join(f"{len(met[model])} for {label}" for model, label in MODEL_LABELS.items())
    both = len(set.intersection(*met.values()))
    return f"Of {len(found)} readings, {counts} come within 10 % of the paper's gain, {both or 'none'} for both."


def _small_utilisations(results: Reproduction) -> str:
    """The utilisation on 16 chips that the paper's numbers imply, beside ours."""
    words = []
    for model, label in MODEL_LABELS.items():
        implied = paper_utilisations(results.paper, model)["meshslice", 16]
        (ours,) = (
            point.utilisation
            for point in results.weak_scaling
            if (point.model, point.algorithm, point.num_chips) == (model, "meshslice", 16)
        )
        words.append(f"{percent(implied)} on 16 chips for {label}, where ours is {percent(ours)}")
    return " and ".join(words)


def _section_51(results: Reproduction) -> list[str]:
    over_collective = mean_gain(results.product_shapes, "collective")
    over_wang = mean_gain(results.product_shapes, "wang")
    return [
        html_section(
            "figure-9",
            "Figure 9: FC layers under weak scaling",
            html_paragraph(
                "Batch of half the chips, sequence 2,048; forward, backward data, backward weight. Each algorithm at "
                "its own best mesh; SUMMA, Wang and the 1D baselines unrolled to MeshSlice's tuned slices; the 1D "
                "baselines on rings of two links with Wang's overlap. Cannon where the chips make a square. SUMMA's "
                "broadcasts are operations of their own, with the constants of AllGather, as in the authors' code. "
                "What jaxquard runs, and prices when it tunes, are permutes with a launch each, and slower. A pointer "
                "on a bar shows its mesh."
            ),
            html_charts(*draw_scaling(results.weak_scaling, paper=results.paper)),
        ),
        html_section(
            "figure-10",
            "Figure 10: communication, hidden or not, relative to the products' time",
            html_paragraph("256 chips. Below the red line all of it could be hidden. 1D TP is clipped."),
            html_charts(*draw_communication(results.communication)),
        ),
        html_section(
            "figure-11",
            "Figure 11: the products of the FC layers one by one",
            html_paragraph(
                f"256 chips, the eight distinct products of each model, each algorithm at its best mesh for each. "
                f"MeshSlice is faster than Collective by {percent(over_collective)} and than Wang by "
                f"{percent(over_wang)} in the mean (paper: {results.paper.value('over_collective_shapes')} % and "
                f"{results.paper.value('over_wang_shapes')} %)."
            ),
            f'<div class="wide">{"".join(draw_product_shapes(results.product_shapes))}</div>',
        ),
        html_section(
            "figure-12",
            "Figure 12: FC layers under strong scaling",
            html_paragraph("Batch of 32 whatever the chips. FSDP cannot: it needs a sequence for each chip."),
            html_charts(*draw_scaling(results.strong_scaling)),
        ),
    ]


def _section_52(results: Reproduction) -> list[str]:
    return [
        html_section(
            "table-2",
            "Table 2: dataflow optimisation, 256 chips",
            dataflow_table_html(results),
        ),
        html_section(
            "figure-13",
            "Figure 13: mesh shapes",
            html_paragraph(
                "MeshSlice on every mesh of 256 chips. The simulation plays each product event by event, with products "
                "and moves sharing the memory's bandwidth."
            ),
            html_charts(*draw_mesh_shapes(results.mesh_shapes)),
        ),
        html_section(
            "figure-14",
            "Figure 14: slice counts",
            html_paragraph("The same count in all products, every one that divides. S = 1 is Collective."),
            html_charts(*draw_slice_counts(results.slice_counts)),
        ),
    ]


def _section_53(results: Reproduction) -> list[str]:
    return [
        html_section(
            "table-3",
            "Table 3: the real 4×4 mesh",
            html_paragraph(
                "Modelled, since it needs the chips: the main constants, nothing overlapped, batch 16 (the paper's "
                "numbers do not agree with 8), 8 slices, copies of slices at the memory's full bandwidth. Most of "
                "Wang's overlap fails on the real mesh (5.3.1), so that the paper's should lie between both of ours. "
                + _wang_words(results)
            ),
            real_mesh_table(results.real_mesh, results.paper),
        ),
        html_section(
            "figure-15",
            "Figure 15: communication time of each FC layer on the 4×4 mesh",
            html_paragraph(
                f"The paper holds its estimates against measurements on 16 TPU v4 chips: "
                f"{results.paper.figure_15_mean_error} % average error. That cannot be redone without the chips. "
                f"Against our simulation their average error is {percent(mean_error(results.layer_communication))}: "
                "both start from the same constants, and on this mesh memory is nowhere contended for, so it says "
                "nothing about the hardware."
            ),
            html_charts(*draw_layer_communication(results.layer_communication)),
        ),
    ]


def _wang_words(results: Reproduction) -> str:
    """The place of the paper's Wang on the real mesh."""
    words = []
    for row in results.real_mesh:
        paper = results.paper.table_3[row.model]["wang"] / 100
        place = "below both" if paper < row.wang else "above both" if paper > row.wang_overlapped else "between them"
        words.append(f"{place} for {MODEL_LABELS[row.model]}")
    too_kind = any(word.startswith("below") for word in words)
    end = ": the model is too kind to Wang's SendRecvs on that mesh." if too_kind else "."
    return f"It lies {' and '.join(words)}{end}"


def _section_7(results: Reproduction) -> str:
    return html_section(
        "section-7",
        "Section 7: against 2.5D, 1,024 chips",
        html_paragraph(
            "What a chip sends for an FC layer of GPT-3 with (M, N, K) = (1024K, 12K, 48K). The paper's numbers count "
            "P shards for a ring of P chips, and its 336 MB are MiB; a ring sends P − 1. Its 2.5D moves A, the largest "
            "matrix. A 2.5D that keeps A in place sends 402 MiB, not 1.6 GB, so that most of the difference is the "
            "choice of dataflow, not the algorithm. Neither counts 2.5D's skew and copies, nor the sum of gradients "
            "over data parallelism. A 3D algorithm needs a cube of chips, which 1,024 are not."
        ),
        traffic_table(results.three_dimensions, results.paper),
    )


def _what_runs(results: Reproduction) -> str:
    best = fastest(results.what_runs)
    ahead = sum(algorithm == "meshslice" for algorithm in best.values())
    return html_section(
        "what-runs",
        "Beyond the paper: the prices of what runs",
        html_paragraph(
            "256 chips of TPU v4 with the exact autotuner, one block. The links have the simulation set's constants, "
            "and the chip has what the paper's model leaves out: thin slices, fp32 sums, the launch of each product, "
            "copies. The TPU's compiler hides one all-gather behind a product and no reduce-scatter; so MeshSlice is "
            "taken plain, with what is then waited for, or split, with sums that go round as permutes, one beside "
            "each product. In the compiler's schedule every permute has a start of its own, inside one program, "
            "without a launch from the host. The authors' constant for a launch is 100 µs. Whether it holds for each "
            "permute or for a chain of them decides the order:"
        ),
        running_table(results.what_runs),
        html_paragraph(
            f"MeshSlice is ahead of Collective in all lines, and ahead of both in {ahead} of {len(best)}. Where Wang "
            "is ahead, it is because its permutes use both ways of a link at once, and MeshSlice's streams of sums "
            "take turns, one way at a time; and because its ring has fewer launches than S slices with a ring each."
        ),
    )


def _beyond(results: Reproduction) -> str:
    return html_section(
        "beyond",
        "Beyond the paper: 1,024 and 4,096 chips",
        html_paragraph(
            "Not in the paper. Weak scaling as in Figure 9, with the simulation set and SendRecv both ways. The "
            "constants were measured on rings of 2 and 4 chips; rings of 256 and more are an extrapolation."
        ),
        html_charts(*draw_scaling(results.beyond)),
        beyond_table(results.beyond),
    )


def _method(results: Reproduction) -> str:
    return html_section(
        "method",
        "Constants, and what is modelled",
        constants_table(constant_sets()),
        set_table(results.headlines),
        html_paragraph(
            "Layers other than FC are modelled, not measured, by a roofline: every operation of attention, softmax, "
            "layer norm, GeLU and residual sums reads its inputs from memory and writes its output there, activations "
            "in bf16, scores in fp32, nothing fused, at 1,228 GB/s or the effective FLOP/s. "
            + _other_layers(results.paper, results)
        ),
        html_paragraph(
            "Not done, for want of the hardware: the measurements of Table 3 and Figure 15, the traces behind the "
            "1.3 %, and the measured times of the other layers. Memory is no limit in any figure, as in the paper.",
            is_note=True,
        ),
    )


def _other_layers(paper: Paper, results: Reproduction) -> str:
    """Our roofline beside what the paper's speedups imply: (1 + w) / (1 + x) against (1 + e)."""
    cluster = constant_set(SIMULATION, is_bidirectional=True).cluster
    words = []
    for model in MODELS:
        others_s = other_layers_time_s(model, cluster, batch=128, num_chips=256)
        (point,) = (
            point
            for point in results.weak_scaling
            if (point.model, point.algorithm, point.num_chips) == (model.key, "meshslice", 256)
        )
        implied = paper.value(f"over_wang_{model.key}") / paper.value(f"end_to_end_{model.key}") - 1
        words.append(
            f"{percent(others_s / point.time_s)} of MeshSlice's FC time for {MODEL_LABELS[model.key]} "
            f"(the paper's speedups imply {percent(implied)})"
        )
    return f"They take {' and '.join(words)}."
