"""The words of the code and of its docs: one name for one thing, and the field's name where it has one."""

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "jaxquard"


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def test_a_class_name_means_one_thing():
    classes = Counter(
        node.name
        for path in SOURCE.rglob("*.py")
        for node in parse(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert classes["RemoteMesh"] == 1
    assert [name for name, count in classes.items() if count > 1] == []
