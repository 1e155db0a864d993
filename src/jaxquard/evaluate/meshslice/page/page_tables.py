"""The tables of the page: headlines, claims, Tables 2 and 3, section 7, the constants."""

from collections.abc import Sequence

from jaxquard.cluster import Links
from jaxquard.evaluate.common.headlines import headline_table, in_unit, span_in_unit
from jaxquard.evaluate.common.numbers import mesh_label, percent
from jaxquard.evaluate.common.verdicts import Grade
from jaxquard.evaluate.meshslice.figures.real_mesh import RealMeshRow
from jaxquard.evaluate.meshslice.figures.scaling import ScalingPoint
from jaxquard.evaluate.meshslice.figures.three_dimensions import MIB, Traffic
from jaxquard.evaluate.meshslice.figures.what_runs import RunningPoint, fastest
from jaxquard.evaluate.meshslice.headlines import BandedHeadline
from jaxquard.evaluate.meshslice.paper import Paper
from jaxquard.evaluate.meshslice.readings import Reading
from jaxquard.evaluate.meshslice.reproduce import Reproduction
from jaxquard.evaluate.meshslice.setup.constant_sets import ConstantSet, constant_sets
from jaxquard.evaluate.meshslice.setup.labels import ALGORITHM_LABELS, MODEL_LABELS
from jaxquard.report.charts.range_chart import Range, range_chart
from jaxquard.report.html_page import html_table

_BAND_COLORS = {Grade.GOOD: "#7cc79b", Grade.FAIR: "#e8c468", Grade.POOR: "#e89a92"}


def draw_headlines(headlines: Sequence[BandedHeadline]) -> str:
    """All headlines with their bands in one chart."""
    ranges = [
        Range(
            name=headline.paper.title,
            paper=headline.paper.value,
            ours=headline.ours,
            band=headline.band,
            fitted=headline.fitted,
            color=_BAND_COLORS[headline.verdict.grade],
            show=lambda value, unit=headline.paper.unit: in_unit(value, unit),
        )
        for headline in headlines
    ]
    return range_chart(
        "Each on a scale of its own, from 0", ranges, legend=("measured constants", "fitted constants", "ours", "paper")
    )


def banded_table(headlines: Sequence[BandedHeadline]) -> str:
    """The headlines with their bands."""
    columns = {
        "band": [band_words(headline) for headline in headlines],
        "fitted": [span_in_unit(headline.fitted, headline.paper.unit) for headline in headlines],
    }
    return headline_table(headlines, why="what it depends on", columns=columns, words=("band",))


def band_words(headline: BandedHeadline) -> str:
    """The band's ends, each with the set of constants that gives it."""
    ends = zip(headline.band, headline.band_sets, strict=True)
    return " to ".join(f"{in_unit(end, headline.paper.unit)} ({sets})" for end, sets in ends)


def reading_table(headline: str, found: Sequence[Reading], paper: Paper) -> str:
    """Results of other readings of the text for the two models' headlines of one kind."""
    said = ["the paper", *(f"{paper.value(f'{headline}_{model}'):.1f} %" for model in MODEL_LABELS)]
    rows = [
        [reading.text, *(f"{reading.percents[model]:.1f} %" for model in MODEL_LABELS)]
        for reading in found
        if reading.headline == headline
    ]
    return html_table(["reading", *MODEL_LABELS.values()], [said, *rows])


def running_table(points: Sequence[RunningPoint]) -> str:
    """Milliseconds of a block under each assumption about permutes, the fastest algorithm marked."""
    best = fastest(points)
    rows = []
    for model, label in MODEL_LABELS.items():
        of_model = [point for point in points if point.model == model]
        for each, both in dict.fromkeys((point.launches_each_permute, point.is_bidirectional) for point in of_model):
            cells = [
                f"{'→ ' if best[model, each, both] == point.algorithm else ''}{point.time_s * 1e3:.1f} ms on "
                f"{mesh_label(point.mesh_shape)}"
                for point in of_model
                if (point.launches_each_permute, point.is_bidirectional) == (each, both)
            ]
            rows.append([label, "each permute" if each else "each chain", "both ways" if both else "one way", *cells])
    names = (ALGORITHM_LABELS[name] for name in dict.fromkeys(point.algorithm for point in points))
    return html_table(["model", "launch of", "a permute's links", *names], rows, words=(0, 1, 2))


def set_table(headlines: Sequence[BandedHeadline]) -> str:
    """Every headline with every measured set of constants; the fitted ones are in the JSON file."""
    labels = [one.label for one in constant_sets() if not one.is_fitted]
    rows = [
        [
            headline.paper.title,
            in_unit(headline.paper.value, headline.paper.unit),
            *(in_unit(headline.by_set[label], headline.paper.unit) for label in labels),
        ]
        for headline in headlines
    ]
    return html_table(["headline", "paper", *labels], rows)


def dataflow_table_html(results: Reproduction) -> str:
    """Returns Table 2 as HTML."""
    rows = []
    for row in results.dataflow_table:
        paper = results.paper.table_2[row.model]
        gain = paper["optimised"] / paper["unoptimised"] - 1
        rows.append(
            [
                MODEL_LABELS[row.model],
                *_beside(paper["unoptimised"], row.unoptimised),
                *_beside(paper["optimised"], row.optimised),
                *_beside(100 * gain, row.gain),
            ]
        )
    header = ["model", "not optimised: paper", "ours", "optimised: paper", "ours", "speedup: paper", "ours"]
    return html_table(header, rows)


def real_mesh_table(rows: Sequence[RealMeshRow], paper: Paper) -> str:
    """Table 3, and what follows from it."""
    lines = []
    for row in rows:
        theirs = paper.table_3[row.model]
        overhead = theirs["collective"] / theirs["meshslice"] - 1
        lines.append(
            [
                MODEL_LABELS[row.model],
                *_beside(theirs["collective"], row.collective),
                f"{theirs['wang']:.1f} %",
                f"{percent(row.wang)} / {percent(row.wang_overlapped)}",
                *_beside(theirs["meshslice"], row.meshslice),
                *_beside(theirs["meshslice_overlapped"], row.meshslice_overlapped),
                *_beside(100 * overhead, row.overhead),
            ]
        )
    header = [
        "model",
        "Collective: paper",
        "ours",
        "Wang: paper",
        "ours, none / all hidden",
        "MeshSlice: paper",
        "ours",
    ]
    return html_table([*header, "overlapped: paper", "ours", "overhead: paper", "ours"], lines)


def traffic_table(rows: Sequence[Traffic], paper: Paper) -> str:
    """Returns the traffic of section 7 as HTML."""
    said = {
        "2.5D": f"{paper.traffic_25d_gb:g} GB",
        "MeshSlice with data parallelism": f"{paper.traffic_meshslice_mb:g} MB",
    }
    lines = [
        [
            row.name,
            mesh_label(row.mesh_shape),
            said.get(row.name, "left out"),
            f"{row.traffic_bytes / MIB:,.1f} MiB",
            f"{row.traffic_bytes / 1e9:.3f} GB",
            f"{row.minimum_traffic_bytes / MIB:,.1f} MiB",
            f"{row.memory_bytes / MIB:,.1f} MiB",
        ]
        for row in rows
    ]
    header = ["algorithm", "chips", "paper", "P shards a ring", "the same", "P − 1 shards", "shards of A, B, C held"]
    return html_table(header, lines, words=(0, 1))


def beyond_table(points: Sequence[ScalingPoint]) -> str:
    """Utilisations and meshes at 1,024 and 4,096 chips."""
    found = {(point.model, point.num_chips, point.algorithm): point for point in points}
    columns = list(dict.fromkeys((point.model, point.num_chips) for point in points))
    rows = [
        [
            name,
            *(
                f"{percent(found[*column, algorithm].utilisation)}, {mesh_label(found[*column, algorithm].mesh_shape)}"
                for column in columns
            ),
        ]
        for algorithm, name in ALGORITHM_LABELS.items()
    ]
    return html_table(["algorithm", *(f"{MODEL_LABELS[model]}, {chips:,} chips" for model, chips in columns)], rows)


def constants_table(sets: Sequence[ConstantSet]) -> str:
    """The sets, each once, whatever is assumed about SendRecv."""
    rows = []
    for name, cluster in {one.name: one.cluster for one in sets}.items():
        rows.append(
            [
                name,
                f"{cluster.compute.effective_flops_per_s / 1e12:.0f} TFLOP/s",
                *(_links(links) for links in (cluster.all_gather, cluster.reduce_scatter, cluster.permute)),
            ]
        )
    return html_table(["set", "effective", "AllGather", "ReduceScatter", "SendRecv, one way"], rows, words=(0, 2, 3, 4))


def _links(links: Links) -> str:
    rows, columns = links.row_bandwidth_bytes_per_s / 1e9, links.column_bandwidth_bytes_per_s / 1e9
    bandwidth = f"{rows:g}" if rows == columns else f"{rows:g} / {columns:g}"
    return f"{bandwidth} GB/s, sync {links.sync_s * 1e6:g} µs, launch {links.launch_s * 1e6:g} µs"


def _beside(paper_percent: float, ours: float) -> tuple[str, str]:
    return f"{paper_percent:.1f} %", percent(ours)
