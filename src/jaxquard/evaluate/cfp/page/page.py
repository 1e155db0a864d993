"""The page: the paper's results beside ours, in the order of the paper."""

from jaxquard.evaluate.cfp.cells.results_file import Results
from jaxquard.evaluate.cfp.cells.targets import targets
from jaxquard.evaluate.cfp.claims import check_claims
from jaxquard.evaluate.cfp.headlines import VERDICTS, headlines
from jaxquard.evaluate.cfp.page.page_figures import figure_sections
from jaxquard.evaluate.cfp.page.page_tables import target_table
from jaxquard.evaluate.cfp.page.page_words import intro_text, page_words
from jaxquard.evaluate.common.claims import claim_table
from jaxquard.evaluate.common.headlines import headline_table, verdict_counts
from jaxquard.report.html_page import html_page, html_paragraph, html_section

TITLE = "CFP (arXiv 2504.00598), redone by jaxquard"


def cfp_page(results: Results) -> str:
    """One HTML page that needs nothing else."""
    sections = [_headlines(results), _claims(results), *figure_sections(results), _method(results)]
    title = TITLE if results.cluster is None else f"{TITLE}, priced for {results.cluster}"
    return html_page(title, _intro(results), sections)


def _intro(results: Results) -> str:
    counts = verdict_counts(headlines(results), VERDICTS)
    thin = any(cell.spec.is_thin for cell in results.cells)
    parts = [
        html_paragraph(f"{counts}. {intro_text(results)}"),
        html_paragraph(page_words(results).caveats, is_note=True),
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
    words = page_words(results)
    return html_section(
        "method",
        words.method_title,
        target_table(targets(results.cells)),
        html_paragraph(words.method),
        html_paragraph(words.left_out, is_note=True),
    )
