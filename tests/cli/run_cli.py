"""Runs commands for the tests, inside this process or in another."""

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import jaxquard
from jaxquard.cli.main import app

# Before click 8.2, stderr goes into stdout unless one says so.
APART = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}


def run(*words, columns=120):
    environment = {"COLUMNS": str(columns), "NO_COLOR": "1", "FORCE_COLOR": None}
    return CliRunner(**APART).invoke(app, [*map(str, words)], env=environment)


def environment(**more):
    found = {**os.environ, "PYTHONPATH": str(Path(jaxquard.__file__).parents[1]), "NO_COLOR": "1", **more}
    found.pop("FORCE_COLOR", None)
    return found


def run_apart(*words, **options):
    """In another process, as a user does."""
    command = [sys.executable, "-m", "jaxquard", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=120, **options)


def commands(command=None, path=()):
    """Every command that runs, by the words that name it."""
    command = command or typer.main.get_command(app)
    context = type(command).context_class(command) if hasattr(type(command), "context_class") else None
    if not hasattr(command, "list_commands"):
        return {path: command}
    found = {}
    for name in command.list_commands(context):
        found |= commands(command.get_command(context, name), (*path, name))
    return found


def read_json(result):
    """The answer of a command that was asked for JSON: strict JSON, and nothing else on stdout."""
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def without_progress(text):
    """Returns what stands on stderr but for the lines that a slow machine gets every 15 s."""
    return "".join(line for line in text.splitlines(keepends=True) if not re.match(r"(\d+ (h|min|s) ?)+: ", line))
