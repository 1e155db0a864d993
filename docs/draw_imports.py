"""Draws which folders import which, read from the source: every arc points down, so there is no circle."""

import ast
import functools
import re
import tomllib
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src"

WIDTH, HEIGHT, TOP, BOX = 860, 560, 62, 118
STYLE = """<style>
  :root { --ground: #ffffff; --ink: #1f2937; --grey: #6b7280; --plain: #f1f3f5; --line: #9aa3af;
    --down: #4477aa; --up: #d1495b; }
  @media (prefers-color-scheme: dark) { :root { --ground: #16181b; --ink: #e5e7eb; --grey: #a2a9b4; --plain: #25282d;
    --line: #717a86; --down: #7fb2e3; --up: #ef7a8b; } }
  text { font: 12px ui-monospace, "DejaVu Sans Mono", monospace; fill: var(--ink); text-anchor: middle; }
  .title { font: 600 13px -apple-system, "Segoe UI", Inter, "DejaVu Sans", sans-serif; }
  .ground { fill: var(--ground); } .box { fill: var(--plain); stroke: var(--line); }
  path { fill: none; stroke-width: 1.3; opacity: 0.75; } .down { stroke: var(--down); } .up { stroke: var(--up); }
</style>"""


def import_order(container: str) -> list[str]:
    """The folders of a package from the top down, as the contract of import-linter has them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each.get("containers") == [container])
    names = [name for layer in layers for name in re.findall(r"\w+", layer)]
    folder = SOURCE.joinpath(*container.split("."))
    return [name for name in names if (folder / name).is_dir() or name == "problem"]


def find_imports(container: str) -> set[tuple[str, str]]:
    """Pairs of folders of a package, of which the first imports the second."""
    folder = SOURCE.joinpath(*container.split("."))
    found = set()
    for path in folder.rglob("*.py"):
        parts = path.relative_to(folder).with_suffix("").parts
        for module in imported_names(path):
            if len(parts) > 1 and module.startswith(f"{container}."):
                found.add((parts[0], module.removeprefix(f"{container}.").split(".")[0]))
    names = set(import_order(container))
    return {(first, second) for first, second in found if first != second and {first, second} <= names}


@functools.cache
def imported_names(path: Path) -> frozenset[str]:
    """The full names that a file imports, wherever in the file."""
    package = path.relative_to(SOURCE).parent.parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) + "." if node.level else ""
            module = (base + (node.module or "")).rstrip(".")
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return frozenset(found)


def draw_imports() -> str:
    """Three columns: the package, sharding, and 2D products."""
    parts = []
    for x, container in ((24, "jaxquard"), (374, "jaxquard.intraop"), (634, "jaxquard.gemm")):
        parts += _column(x, container)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'role="img" aria-label="Which folders import which: all arcs point down">\n'
        f'{STYLE}\n<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="8"/>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _column(x: float, container: str) -> list[str]:
    names = import_order(container)
    step = (HEIGHT - TOP - 16) / max(len(names), 9)
    middle = {name: TOP + step * (position + 0.5) for position, name in enumerate(names)}
    parts = [f'<text class="title" x="{x + BOX / 2:.0f}" y="38">{escape(container)}</text>']
    for first, second in sorted(find_imports(container)):
        start, end = middle[first], middle[second]
        side, css = (x + BOX, "down") if end > start else (x, "up")
        reach = side + (1 if end > start else -1) * (12 + 0.42 * abs(end - start))
        curve = f"C{reach:.0f} {start:.1f} {reach:.0f} {end:.1f} {side:.0f} {end:.1f}"
        hint = f"<title>{first} imports {second}</title>"
        parts.append(f'<path class="{css}" d="M{side:.0f} {start:.1f}{curve}">{hint}</path>')
    for name, y in middle.items():
        parts.append(f'<rect class="box" x="{x:.0f}" y="{y - 12:.1f}" width="{BOX}" height="24" rx="5"/>')
        parts.append(f'<text x="{x + BOX / 2:.0f}" y="{y + 4:.1f}">{escape(name)}</text>')
    return parts
