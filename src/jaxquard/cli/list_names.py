"""`jaxquard list`: the models, clusters, schedules and algorithms that commands take, with a line on each."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from jaxquard.cli.console import make_console, print_json
from jaxquard.cli.gemm.names import ALGORITHMS
from jaxquard.cli.options import JsonOption, choose_name, complete


def _complete(incomplete: str) -> list[str]:
    return complete(*_KINDS)(incomplete)


def list_names(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="models|clusters|schedules|algorithms",
            autocompletion=_complete,
            help="Which list; all of them if left out.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Lists the models, clusters, schedules and algorithms that commands take, with a line on each.

    Example: jaxquard list schedules
    """
    kinds = list(_KINDS) if kind is None else [choose_name(kind, _KINDS, kind="list")]
    found = {name: _KINDS[name]() for name in kinds}
    if as_json:
        print_json(found if kind is None else found[kinds[0]])
        return
    console = make_console()
    for name, lines in found.items():
        if kind is None:
            console.print(f"{name}:", style="bold")
        width = max(map(len, lines))
        for one, line in lines.items():
            console.print(f"{'  ' if kind is None else ''}{one:<{width}}  {line}", markup=False, soft_wrap=True)


def _models() -> dict[str, str]:
    from jaxquard.models import zoo

    return {name: _model_line(zoo.find_model(name)) for name in zoo.model_names()}


def _model_line(model: Any) -> str:
    config, count = model.config, model.module.num_parameters(model.config)
    size = f"{count / 1e9:.3g} B" if count >= 1e9 else f"{count / 1e6:.3g} M"
    layers = f"{config.num_layers} layers of {config.model_dim}"
    return f"{size} parameters, {layers}, sequences of {config.sequence_length}, vocabulary of {config.vocab_size}"


def _clusters() -> dict[str, str]:
    from jaxquard.cli.cluster.show import cluster_line
    from jaxquard.cluster import load_cluster, preset_names

    return {name: cluster_line(load_cluster(name)).partition(": ")[2] for name in preset_names()}


def _schedules() -> dict[str, str]:
    from jaxquard.schedules import SCHEDULES

    return {name: (kind.__doc__ or "").strip().splitlines()[0].rstrip(".") for name, kind in SCHEDULES.items()}


_KINDS: dict[str, Callable[[], dict[str, str]]] = {
    "models": _models,
    "clusters": _clusters,
    "schedules": _schedules,
    "algorithms": lambda: dict(ALGORITHMS),
}
