"""The help of commands and groups, in plain text: 80 columns hold it, and it imports no renderer."""

import inspect
import textwrap
from typing import Any

from jaxquard.cli.declared import Declared, declared_parameters

# Stands for a space at which no line ends.
_TOGETHER = "\N{NO-BREAK SPACE}"


def write_help(command: Any, ctx: Any, formatter: Any) -> None:
    """Writes the help of a command or group to click's formatter."""
    _write_usage(command, ctx, formatter)
    _write_description(command, formatter)
    _write_parameters(command, ctx, formatter)
    if hasattr(command, "list_commands"):
        _write_commands(command, ctx, formatter)
    command.format_epilog(ctx, formatter)


def _write_usage(command: Any, ctx: Any, formatter: Any) -> None:
    """Writes `Usage: jaxquard schedule [OPTIONS] NAME|FILE.csv`."""
    arguments = [param for param in command.get_params(ctx) if param.param_type_name == "argument"]
    words = [param.metavar if param.required else f"[{param.metavar}]" for param in arguments]
    last = ["COMMAND [ARGS]..."] if hasattr(command, "list_commands") else []
    formatter.write_usage(ctx.command_path, " ".join(["[OPTIONS]", *words, *last]))


def _write_description(command: Any, formatter: Any) -> None:
    """Writes the paragraphs of a docstring; an example keeps its line, to be copied."""
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        formatter.write_paragraph()
        with formatter.indentation():
            if paragraph.startswith("Example: "):
                formatter.write(f"{' ' * formatter.current_indent}{' '.join(paragraph.split())}\n")
            else:
                formatter.write_text(paragraph)


def _write_parameters(command: Any, ctx: Any, formatter: Any) -> None:
    """Writes the arguments and options, each with its help and its default."""
    declared = declared_parameters(command.callback)
    params = [param for param in command.get_params(ctx) if not param.hidden]
    for kind, title in (("argument", "Arguments"), ("option", "Options")):
        rows = [
            (_name(param), _help(param, declared.get(param.name))) for param in params if param.param_type_name == kind
        ]
        if rows:
            with formatter.section(title):
                _write_rows(rows, formatter)


def _write_commands(command: Any, ctx: Any, formatter: Any) -> None:
    """Writes the commands of a group, each with the first paragraph of its help."""
    commands = {name: command.get_command(ctx, name) for name in command.list_commands(ctx)}
    rows = [
        (name, inspect.cleandoc(found.help or "").split("\n\n")[0]) for name, found in commands.items() if found.help
    ]
    with formatter.section("Commands"):
        _write_rows(rows, formatter)


def _write_rows(rows: list[tuple[str, str]], formatter: Any) -> None:
    """Writes two columns. Click's own way breaks lines inside names, after a hyphen."""
    indent, column = formatter.current_indent, max(len(name) for name, _ in rows) + 2
    for name, text in rows:
        lines = textwrap.wrap(text, formatter.width - indent - column, break_on_hyphens=False)
        for first, line in zip([name, *[""] * len(lines)], lines, strict=False):
            formatter.write(f"{'':{indent}}{first:{column}}{line.replace(_TOGETHER, ' ')}\n")


def _name(param: Any) -> str:
    if param.param_type_name == "argument":
        return param.metavar
    names = " / ".join([", ".join(param.opts), *param.secondary_opts])
    return names if param.is_flag else f"{names} {param.metavar}"


def _help(param: Any, declared: Declared | None) -> str:
    text, default = param.help if declared is None else declared.help, _default(param, declared)
    return f"{text} [default:{_TOGETHER}{default.replace(' ', _TOGETHER)}]" if default else text


def _default(param: Any, declared: Declared | None) -> str:
    if isinstance(param.show_default, str):
        return param.show_default
    if declared is None or declared.default is None or declared.default is inspect.Parameter.empty:
        return ""
    if isinstance(declared.default, bool):
        return param.opts[0].removeprefix("--") if declared.default else ""
    return f"{declared.default:g}" if isinstance(declared.default, float) else str(declared.default)
