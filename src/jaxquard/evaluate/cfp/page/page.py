"""The page: the paper's results beside ours, in the order of the paper."""

from jaxquard.evaluate.cfp.cells.results_file import Results
from jaxquard.evaluate.cfp.cells.targets import targets
from jaxquard.evaluate.cfp.claims import check_claims
from jaxquard.evaluate.cfp.headlines import VERDICTS, headlines
from jaxquard.evaluate.cfp.page.page_figures import figure_sections
from jaxquard.evaluate.cfp.page.page_tables import target_table
from jaxquard.evaluate.common.claims import claim_table
from jaxquard.evaluate.common.headlines import headline_table, verdict_counts
from jaxquard.report.html_page import html_page, html_paragraph, html_section

TITLE = "CFP (arXiv 2504.00598), redone by jaxquard"


def cfp_page(results: Results) -> str:
    """One HTML page that needs nothing else."""
    sections = [_headlines(results), _claims(results), *figure_sections(results), _method(results)]
    return html_page(TITLE, _intro(results), sections)


def _intro(results: Results) -> str:
    counts = verdict_counts(headlines(results), VERDICTS)
    machines = "; ".join(dict.fromkeys(cell.machine for cell in results.cells if cell.machine)) or "no cell ran"
    thin = any(cell.spec.is_thin for cell in results.cells)
    parts = [
        html_paragraph(
            f"{counts}. Everything here was measured: whole training steps as real SPMD programs, "
            f"on virtual devices of a CPU ({machines}). The paper ran models of billions of parameters on GPUs. So "
            "seconds, bytes and the size of a gain cannot be compared. What can: whether the plan of minimum volume "
            "is the fastest, whether prices of parts predict the whole, whether the search finds what running "
            "everything finds, and what a search costs."
        ),
        html_paragraph(
            "On this machine devices share one memory and the same cores. Sending is copying, so that bytes cost "
            "little; a collective costs a meeting of all devices; and work that is not sharded is done once by each "
            "device on the same cores. Alpa itself does not run here: its rule, the minimum symbolic volume, is an "
            "integer program over the same blocks. PyTorch and DeepSpeed-Megatron stand as data parallelism and "
            "Megatron's tensor parallelism, in the same harness.",
            is_note=True,
        ),
    ]
    if thin:
        parts.append(
            html_paragraph(
                "This is a quick run: tiny models, two choices a block, few strategies. It shows what the page looks "
                "like, and no result."
            )
        )
    return "\n".join(parts)


def _headlines(results: Results) -> str:
    return html_section(
        "headlines",
        "Headlines",
        html_paragraph(
            "As in the paper: at least 80 % of what the paper's ratio lies above 1, or at most its error, count or "
            "time. In kind: the same direction, by more than 3 %."
        ),
        headline_table(headlines(results), why="what ours is, and what may part them"),
    )


def _claims(results: Results) -> str:
    return html_section("claims", "What the paper says in words", claim_table(check_claims(results)))


def _method(results: Results) -> str:
    return html_section(
        "method",
        "Our own targets, and how it was measured",
        target_table(targets(results.cells)),
        html_paragraph(
            "Every cell is one search as `jq.search_sharding` does it. Then the chosen plan, the finalists, the "
            "baselines and the strategies of the layers are compiled whole, once; all run a few times; then the "
            "best ten, the chosen one and the baselines in turns, 30 to 90 times each. Times are in the mean as long "
            "as the fastest run of each, and in the ratios that the runs of most rounds show, side by side. The "
            "strategies take the same choice in all layers of a kind, one kind at a time; all other choices are "
            "those of the chosen plan, or of the fastest finalist where that is a baseline with choices of its own; "
            "state is kept as it is used."
        ),
        html_paragraph(
            "Not done: models of the paper's size, several nodes, GPUs with and without NVLink. Communication is "
            "separated from computation by JAX's profiler in runs of their own, and its share applied to the others.",
            is_note=True,
        ),
    )
