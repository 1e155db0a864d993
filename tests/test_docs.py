"""What the docs say of the code is still there, and nothing is left out."""

import re
from pathlib import Path

from jaxquard.pipeline.plan_step import PASSES
from jaxquard.schedules import SCHEDULES

DOCS = Path(__file__).parent.parent / "docs"


def test_every_pass_has_its_section_in_order():
    sections = re.findall(r"^## (\w+)$", (DOCS / "passes.md").read_text(), re.MULTILINE)
    assert sections == ["trace", *PASSES]


def test_every_schedule_has_a_picture():
    page = (DOCS / "schedules.md").read_text()
    for schedule in SCHEDULES.values():
        assert f"draw(schedules.{schedule.__name__}(" in page


def test_every_page_is_in_the_index():
    index = (DOCS / "index.md").read_text()
    for page in DOCS.glob("*.md"):
        assert page.stem == "index" or f"\n{page.stem}\n" in index
