"""The command lines in the docs name commands and options that exist."""

import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from jaxquard.cli.main import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = ["cluster", "demo", "gemm", "list", "plan", "reproduce", "run", "schedule", "shard", "simulate"]
# After a mark of code, or at the beginning of an indented line; `|` stands between alternatives.
LINE = re.compile(rf"(?:`|^    )(?:\.venv/bin/)?jaxquard ((?:{'|'.join(COMMANDS)})\b[^`\n#]*)", re.MULTILINE)


def command_lines() -> list[tuple[str, list[str]]]:
    found = []
    for page in PAGES:
        # In tables `|` is escaped; a mark of code may go on in the next line.
        text = page.read_text().replace(r"\|", "|")
        text = re.sub(r"(`[^`\n]*)\n([^`\n]*`)", r"\1 \2", text)
        for line in LINE.findall(text):
            alternatives = [word.split("|") for word in line.split()]
            found += [(page.name, list(words)) for words in itertools.product(*alternatives)]
    return found


def find_command(words: list[str]) -> tuple[Any, list[str]]:
    """The command that the words name, and the words after it."""
    command: Any = typer.main.get_command(app)
    while words and hasattr(command, "get_command"):
        below = command.get_command(None, words[0])
        if below is None and hasattr(command, "default"):  # `jaxquard plan MODEL`
            below, words = command.get_command(None, command.default), ["", *words]
        assert below is not None, words
        command, words = below, words[1:]
    return command, words


def options_of(command: Any) -> set[str]:
    return {name for param in command.params for name in (*param.opts, *param.secondary_opts)} | {"--help"}


def test_the_docs_have_command_lines():
    assert {words[0] for _, words in command_lines()} >= {
        "cluster",
        "demo",
        "gemm",
        "plan",
        "reproduce",
        "run",
        "schedule",
        "shard",
        "simulate",
    }
    assert len(command_lines()) > 20


@pytest.mark.parametrize(
    ("page", "words"), command_lines(), ids=lambda each: each if isinstance(each, str) else " ".join(each)
)
def test_commands_and_options_exist(page, words):
    command, rest = find_command(words)
    if words[0] == "run":  # After the program come its own words.
        rest = list(itertools.takewhile(lambda word: not word.endswith(".py"), rest))
    named = {word.split("=")[0].rstrip(".,;:)") for word in rest if word.startswith("--")}
    assert named <= options_of(command), page
