"""`jaxquard gemm tune`: the best mesh and slices for a model's fully connected layers."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from jaxquard.cli.console import check_writable, make_console, write_file
from jaxquard.cluster import load_cluster
from jaxquard.errors import GemmError
from jaxquard.gemm.autotune.autotune import autotune
from jaxquard.gemm.autotune.models import gpt3, megatron_nlg
from jaxquard.gemm.autotune.table import Tuning, TuningRow
from jaxquard.gemm.cost.algorithms import ALGORITHMS
from jaxquard.gemm.layers.plan_file import plan_text
from jaxquard.gemm.problem import FcLayer, GemmProblem

_MODELS = {"gpt3": gpt3, "megatron-nlg": megatron_nlg}


def tune(
    model: Annotated[str | None, typer.Option(help=f"One of {', '.join(_MODELS)}.")] = None,
    layers: Annotated[
        str | None,
        typer.Option(metavar="INxOUT,...", help="Layers of your own: input and output features of each, in order."),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(min=1, help="Batch times sequence.", show_default="128 sequences of 2,048 for a model"),
    ] = None,
    blocks: Annotated[
        int | None, typer.Option(min=1, help="How many such blocks there are.", show_default="the model's, or 1")
    ] = None,
    cluster: Annotated[str, typer.Option(metavar="NAME|FILE.toml", help="See jaxquard cluster show.")] = "tpu-v4",
    chips: Annotated[int, typer.Option(min=1, help="Number of chips.")] = 256,
    algorithm: Annotated[str, typer.Option(help=f"One of {', '.join(ALGORITHMS)}.")] = "meshslice",
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Activations of a block are computed again, not kept.")
    ] = False,
    keep: Annotated[int, typer.Option(min=1, help="Lines of the table.")] = 10,
    save: Annotated[Path | None, typer.Option(help="Also write the best plan to this JSON file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Finds the fastest mesh and slice counts for 2D tensor parallelism.

    Example: [bold]jaxquard gemm tune --model gpt3 --cluster tpu-v4 --chips 256[/bold]
    """
    problem = _problem(model, layers=layers, rows=rows, blocks=blocks)
    if save is not None:
        check_writable(save)
    tuning = autotune(problem, load_cluster(cluster), chips, algorithm, keep=keep, recompute=recompute)
    text = json.dumps(_content(tuning), indent=2) if as_json else str(tuning)
    make_console().print(text, markup=False, soft_wrap=True)
    if save is not None:
        write_file(save, plan_text(tuning.plan))


def _problem(model: str | None, *, layers: str | None, rows: int | None, blocks: int | None) -> GemmProblem:
    if (model is None) == (layers is None):
        raise GemmError(
            f"give either --model ({', '.join(_MODELS)}) or --layers, say --layers 12288x49152,49152x12288."
        )
    if layers is not None:
        if rows is None:
            raise GemmError("--layers needs --rows, the batch times the sequence. Add, say, --rows 262144.")
        return GemmProblem(layers=_parse_layers(layers), num_rows=rows, num_blocks=blocks or 1)
    if model not in _MODELS:
        raise GemmError(f"no model is called {model!r}. Use one of: {', '.join(_MODELS)}; or give --layers.")
    known = _MODELS[model]()
    return GemmProblem(layers=known.layers, num_rows=rows or known.num_rows, num_blocks=blocks or known.num_blocks)


def _parse_layers(text: str) -> tuple[FcLayer, ...]:
    layers = []
    for number, word in enumerate(text.split(",")):
        sizes = word.strip().split("x")
        if len(sizes) != 2 or not all(size.isdecimal() and int(size) > 0 for size in sizes):
            raise GemmError(f"--layers should be sizes such as 12288x49152,49152x12288, but has {word.strip()!r}.")
        layers.append(FcLayer(name=f"fc{number + 1}", in_features=int(sizes[0]), out_features=int(sizes[1])))
    return tuple(layers)


def _content(tuning: Tuning) -> dict[str, Any]:
    return {
        "cluster": tuning.cluster,
        "num_chips": tuning.num_chips,
        "num_meshes": tuning.num_meshes,
        "table": [_row_content(row) for row in tuning.table],
    }


def _row_content(row: TuningRow) -> dict[str, Any]:
    return {
        "time_s": row.time_s,
        "compute_s": row.cost.compute_s,
        "exposed_s": row.cost.exposed_s,
        "utilisation": row.utilisation,
        "memory_bytes": row.memory_bytes,
        "plan": json.loads(plan_text(row.plan)),
    }
