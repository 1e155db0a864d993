"""Golden texts: what a pass writes, held against a file that people read in reviews."""

from pathlib import Path


def check_golden(text: str, path: Path, *, update: bool) -> None:
    """Compares a text with a file, or rewrites the file."""
    text = text.rstrip("\n") + "\n"
    if update:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.exists(), f"{path} does not exist. Write it with `pytest --update-golden`, then read it."
    assert text == path.read_text(), f"differs from {path}; if that is right, run pytest --update-golden"
