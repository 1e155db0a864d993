"""The sections of the page that hold the paper's figures; an empty text where nothing was run for one."""

from jaxquard.evaluate.cfp.cells.labels import cell_label
from jaxquard.evaluate.cfp.cells.pick import are_some_strategies, line_cells
from jaxquard.evaluate.cfp.cells.results_file import Results
from jaxquard.evaluate.cfp.figures.figure_1 import draw_figure_1, figure_1, llama_cell
from jaxquard.evaluate.cfp.figures.figure_7 import draw_meshes, draw_throughputs, throughput_table
from jaxquard.evaluate.cfp.figures.figure_8 import draw_figure_8, figure_8
from jaxquard.evaluate.cfp.figures.figure_9 import draw_figure_9, figure_9
from jaxquard.evaluate.cfp.figures.figure_10 import draw_figure_10, figure_10
from jaxquard.evaluate.cfp.figures.figure_11 import draw_figure_11, memory_cells, memory_table
from jaxquard.evaluate.cfp.figures.figure_12 import draw_figure_12
from jaxquard.evaluate.cfp.figures.figure_13 import draw_figure_13
from jaxquard.evaluate.cfp.figures.figure_14 import draw_figure_14, figure_14
from jaxquard.evaluate.cfp.page.page_tables import depth_table, prediction_table, seconds_table, volume_table
from jaxquard.evaluate.cfp.page.page_words import page_words
from jaxquard.report.html_page import html_charts, html_paragraph, html_section


def figure_sections(results: Results) -> list[str]:
    """Returns the sections of the figures, in the order of the paper."""
    return [
        *filter(None, [_figure_1(results)]),
        *_section_52(results),
        *_section_53(results),
        *_section_54(results),
        *_section_55(results),
        *filter(None, [_figure_14(results)]),
    ]


def _figure_1(results: Results) -> str:
    cell, found = llama_cell(results.cells), figure_1(results.cells)
    if cell is None or not found:
        return ""
    return html_section(
        "figure-1",
        "Figure 1: volume against communication",
        html_paragraph(
            f"Four configurations of {cell_label(cell.spec)}, from the minimum symbolic volume to the most. "
            "Communication is what is not hidden behind computation. If volume decided the time, all bars would grow "
            "to the right. The symbolic volume is that of the choices: that state is kept in parts, as with ZeRO, "
            "is not in it."
        ),
        f'<div class="wide">{draw_figure_1(found)}</div>',
    )


def _section_52(results: Results) -> list[str]:
    line = line_cells(results.cells)
    meshes = draw_meshes([cell for cell in results.cells if not cell.spec.has_limit])
    contents = [
        html_paragraph(
            f"{page_words(results).throughput} Beside data parallelism, Megatron and the minimum volume, which the "
            "paper compares with, the table has ZeRO and sequence parallelism, cells with a memory limit, and how far "
            "the chosen plan is behind the best of all that were looked at: more than 1x is slower than ours."
        ),
        html_charts(*draw_throughputs(line)),
    ]
    if meshes:
        contents += [
            html_paragraph(
                "Meshes of several shapes: 1×8 is one axis. On two, the outer one shards the batch, as in the paper; "
                "the plan of minimum volume may take any combination."
            ),
            html_charts(*meshes),
        ]
    return [html_section("figure-7", "Figure 7: throughput", *contents, throughput_table(results.cells))]


def _section_53(results: Results) -> list[str]:
    sent, by_volume, predictions = figure_8(results.cells), figure_9(results.cells), figure_10(results.cells)
    sections = []
    if sent:
        text = (
            "One cell of each model. Bytes are those of the collectives in the compiled program, by the formulas of "
            f"rings; {page_words(results).communication}; bandwidth is their quotient, and is high where "
            "communication hides behind computation."
        )
        sections.append(
            html_section(
                "figure-8",
                "Figure 8: communication and bandwidth",
                html_paragraph(text),
                html_charts(*draw_figure_8(sent)),
            )
        )
    if by_volume:
        text = (
            "Strategies of the layers, in layers of the same kind the same, in the order of Alpa's cost. If volume "
            "decided the time, bars would grow to the right, and the first would be the fastest."
        )
        if any(are_some_strategies(one.cell) for one in by_volume):
            text += (
                " Not all strategies were run: a third of these are the fastest by equation (8), a third those of "
                "minimum volume, the others spread over the rest. So places count among those alone."
            )
        charts = html_charts(*draw_figure_9(by_volume))
        sections.append(
            html_section(
                "figure-9",
                "Figure 9: the configurations of minimum volume",
                html_paragraph(text),
                charts,
                volume_table(by_volume),
            )
        )
    if predictions:
        text = (
            "A dot is a whole plan. The sum of equation (8) is the paper's prediction. With what neighbours share: "
            "steps of few segments are priced whole, deeper ones in pairs of neighbours; "
            f"{page_words(results).shallow}."
        )
        charts = html_charts(*draw_figure_10(predictions, x_name=page_words(results).x_name))
        sections.append(
            html_section(
                "figure-10",
                "Figure 10: predicted against whole steps",
                html_paragraph(text),
                charts,
                prediction_table(predictions),
            )
        )
    return sections


def _section_54(results: Results) -> list[str]:
    cells = memory_cells(results.cells)
    if not cells:
        return []
    return [
        html_section(
            "figure-11",
            "Figure 11: under a memory limit",
            html_paragraph(
                "LLAMA. What a step takes on each device is the compiler's own account: arguments, temporaries and "
                "results. The plan of minimum volume knows no limit, as in the paper. The search may also take ZeRO "
                "where that is the fastest that fits."
            ),
            html_charts(*draw_figure_11(cells)),
            memory_table(cells),
        )
    ]


def _section_55(results: Results) -> list[str]:
    sections = []
    charts = draw_figure_12(results.cells)
    text = (
        f"What a search spends on its programs. {page_words(results).work} Cells whose prices came from a cache are "
        "left out of the charts."
    )
    contents = [html_charts(*charts)] if charts else []
    sections.append(
        html_section(
            "figure-12",
            "Figure 12: compiling and profiling",
            html_paragraph(text),
            *contents,
            seconds_table(results.cells),
        )
    )
    if results.depths:
        text = (
            "Layers 64 wide. A deep model has the same programs as a shallow one, so prices are made up here: only "
            "analysis and search are timed."
        )
        sections.append(
            html_section(
                "figure-13",
                "Figure 13: analysis and search by depth",
                html_paragraph(text),
                html_charts(*draw_figure_13(results.depths)),
                depth_table(results.depths),
            )
        )
    return sections


def _figure_14(results: Results) -> str:
    cells = figure_14(results.cells)
    if not cells:
        return ""
    charts = "".join(draw_figure_14(cells))
    return html_section(
        "figure-14",
        "Figure 14: the plans themselves",
        html_paragraph(
            "The dims along which each block is sharded: rows of the batch, columns of the weight, what the product "
            "sums over (contracted), or a batch dim of the product, which for experts are the experts. Names are "
            "those of the weights. State is kept as blocks use it, or in parts (ZeRO) where the plan's name says so."
        ),
        f'<div class="wide">{charts}</div>',
    )
