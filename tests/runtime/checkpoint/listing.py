"""The names in a folder."""

import re
from collections import Counter
from pathlib import Path


def names_in(folder: Path) -> list[str]:
    """All of them, but for the claim file that the owner of a path keeps beside it: one a path."""
    names = sorted(path.name for path in folder.iterdir())
    claims = [found[1] for name in names if (found := re.fullmatch(r"\.(.+)\.owner-\d+|\.owner-\d+", name))]
    assert all(count == 1 for count in Counter(claims).values()), names
    return [name for name in names if not re.fullmatch(r"(\..+)?\.owner-\d+", name)]
