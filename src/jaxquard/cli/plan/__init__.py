"""`jaxquard plan`: plans of training steps, one subcommand a file; without a subcommand, a search.

In: a model by name, a loss of the user's, or saved plans. Out: a plan and its file (search); two plans side by side
(diff); what was chosen and why (explain).
"""

import difflib
from typing import Any

import typer

from jaxquard.cli.command import Command, Group
from jaxquard.cli.plan.diff import diff_files
from jaxquard.cli.plan.explain import explain_file
from jaxquard.cli.plan.search import search_plan


class PlanGroup(Group):
    """Takes `jaxquard plan llama3:405b` for `jaxquard plan search llama3:405b`."""

    default = "search"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = self.list_commands(ctx)
        is_command = bool(args) and (args[0] in (*known, "--help") or self._is_slip(args[0], known))
        if args and not is_command and not ctx.resilient_parsing:
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def _is_slip(self, word: str, known: list[str]) -> bool:
        """Says whether a word looks like the name of a command; those of models and losses mostly have a colon."""
        return ":" not in word and bool(difflib.get_close_matches(word, known, cutoff=0.7))


plan_app = typer.Typer(
    cls=PlanGroup,
    help="Plans of training steps: stages, shardings, schedule, microbatches and recomputation, from a loss and a "
    "cluster. jaxquard plan MODEL is short for jaxquard plan search MODEL.",
)
plan_app.command("search", cls=Command)(search_plan)
plan_app.command("diff", cls=Command)(diff_files)
plan_app.command("explain", cls=Command)(explain_file)
