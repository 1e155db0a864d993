"""One self-contained HTML page: its style is in it, and it asks for nothing from elsewhere."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from html import escape

_STYLE = """
:root { color-scheme: light; }
body { margin: 0; background: #f6f7f9; color: #1f2937; line-height: 1.5;
  font-family: -apple-system, 'Segoe UI', Inter, 'DejaVu Sans', sans-serif; font-size: 15px; }
main { max-width: 1180px; margin: 0 auto; padding: 28px 24px 60px; }
h1 { font-size: 26px; margin: 0 0 6px; }
h2 { font-size: 18px; margin: 0 0 4px; }
section { background: #fff; border: 1px solid #e3e6ea; border-radius: 10px; padding: 18px 22px; margin-top: 18px; }
p { margin: 6px 0 10px; max-width: 92ch; }
.note { color: #6b7280; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(460px, 1fr)); gap: 14px; }
.charts svg, .wide svg { width: 100%; height: auto; display: block; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13.5px; margin: 8px 0; }
th, td { text-align: left; padding: 5px 12px 5px 0; border-bottom: 1px solid #e9ebee; vertical-align: top; }
th { color: #6b7280; font-weight: 600; }
th:first-child, td:first-child { min-width: 11em; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.number { white-space: nowrap; }
td:nth-child(2):not(.number) { min-width: 5em; }
.badge { border-radius: 9px; padding: 1px 9px; font-size: 12.5px; white-space: nowrap; font-weight: 600; }
.good { background: #d9f2e3; color: #14633a; }
.fair { background: #fdf0cf; color: #7a5206; }
.poor { background: #fbdedb; color: #96231a; }
nav a { color: #1d4ed8; text-decoration: none; margin-right: 14px; white-space: nowrap; }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Badge:
    """A cell that is a word on a colour: `kind` is "good", "fair" or "poor"."""

    text: str
    kind: str


def html_page(title: str, intro: str, sections: Sequence[str]) -> str:
    """The whole page; `intro` and the sections are HTML."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        f"<h1>{escape(title)}</h1>\n{intro}\n" + "\n".join(sections) + "\n</main>\n</body>\n</html>\n"
    )


def html_section(anchor: str, title: str, *contents: str) -> str:
    """A box with a heading; the contents are HTML."""
    return f'<section id="{escape(anchor)}">\n<h2>{escape(title)}</h2>\n' + "\n".join(contents) + "\n</section>"


def html_paragraph(text: str, *, is_note: bool = False) -> str:
    """Plain text as a paragraph."""
    return f'<p class="note">{_plain(text)}</p>' if is_note else f"<p>{_plain(text)}</p>"


def html_charts(*charts: str) -> str:
    """Charts side by side where the window is wide enough."""
    return '<div class="charts">\n' + "\n".join(charts) + "</div>"


def html_table(header: Sequence[str], rows: Sequence[Sequence[str | Badge]], *, words: Collection[int] = (0,)) -> str:
    """A table of plain cells and badges; columns are numbers, to the right, but for those in `words` and badges."""
    badges = {index for row in rows for index, cell in enumerate(row) if isinstance(cell, Badge)}
    words = {*words, *badges}
    lines = ["".join(f"<th{_class(index, words)}>{_plain(name)}</th>" for index, name in enumerate(header))]
    lines += ["".join(_cell(cell, _class(index, words)) for index, cell in enumerate(row)) for row in rows]
    return '<div class="scroll"><table>\n' + "\n".join(f"<tr>{line}</tr>" for line in lines) + "\n</table></div>"


def _cell(cell: str | Badge, css_class: str) -> str:
    if isinstance(cell, Badge):
        return f'<td><span class="badge {cell.kind}">{_plain(cell.text)}</span></td>'
    return f"<td{css_class}>{_plain(cell)}</td>"


def _class(index: int, words: Collection[int]) -> str:
    return "" if index in words else ' class="number"'


def _plain(text: str) -> str:
    """Text as HTML; a number and its percent sign stay on one line."""
    return escape(text).replace(" %", "&nbsp;%")
