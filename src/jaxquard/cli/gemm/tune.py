"""`jaxquard gemm tune`: the best mesh and slices for a model's fully connected layers."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jaxquard.cli.console import check_writable, print_json, print_text, write_file
from jaxquard.cli.exit_codes import UsageError
from jaxquard.cli.gemm.names import ALGORITHMS, MODELS
from jaxquard.cli.options import JsonOption, MemoryLimitOption, choose_name, complete, is_count, parse_size

if TYPE_CHECKING:
    from jaxquard.gemm.autotune.table import Tuning, TuningRow
    from jaxquard.gemm.problem import GemmProblem


_ALL = "all"
_METHODS = ("exact", "paper")


def tune(
    model: Annotated[
        str | None, typer.Option(metavar="NAME", autocompletion=complete(*MODELS), help=f"One of {', '.join(MODELS)}.")
    ] = None,
    layers: Annotated[
        str | None,
        typer.Option(metavar="INxOUT,...", help="Custom layers: input and output features of each, in order."),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Batch times sequence.", show_default="128 sequences of 2,048 for a model"
        ),
    ] = None,
    blocks: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="How often the layers are repeated.", show_default="the model's, or 1"),
    ] = None,
    cluster: Annotated[
        str, typer.Option(metavar="NAME|FILE.toml", help="A preset, see jaxquard list clusters; or a file.")
    ] = "tpu-v4",
    chips: Annotated[int, typer.Option(metavar="N", min=1, help="Number of chips.")] = 256,
    algorithm: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            autocompletion=complete(*ALGORITHMS, _ALL),
            help=f"One of {', '.join(ALGORITHMS)}; or {_ALL}: each layer takes the fastest.",
        ),
    ] = "meshslice",
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            autocompletion=complete(*_METHODS),
            help="exact: what would run is priced, finalists are simulated; paper: MeshSlice's own phases and prices.",
        ),
    ] = "exact",
    optimizer_bytes: Annotated[
        int, typer.Option(metavar="N", min=0, help="Bytes of optimizer state for each parameter.")
    ] = 12,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Recompute a block's activations instead of keeping them.")
    ] = False,
    memory_limit: MemoryLimitOption = None,
    keep: Annotated[int, typer.Option(metavar="N", min=1, help="Rows of the table.")] = 10,
    out: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write the best plan to this file.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Finds the fastest mesh and slice counts for 2D tensor parallelism.

    Example: jaxquard gemm tune --model gpt3 --cluster tpu-v4 --chips 256
    """
    _check_problem(model, layers=layers, rows=rows)
    name = choose_name(algorithm, (*ALGORITHMS, _ALL), kind="GeMM algorithm")
    how = choose_name(method, _METHODS, kind="method")
    limit_bytes = parse_size(memory_limit)
    check_writable(out)
    from jaxquard.cli.cluster.show import find_cluster
    from jaxquard.gemm.autotune.autotune import autotune
    from jaxquard.gemm.layers.plan_file import plan_text

    problem = _problem(model, layers=layers, rows=rows, blocks=blocks)
    tuning = autotune(
        problem,
        find_cluster(cluster),
        chips,
        name,
        keep=keep,
        memory_limit_bytes=limit_bytes,
        recompute=recompute,
        method="paper" if how == "paper" else "exact",
        optimizer_bytes=optimizer_bytes,
    )
    if out is not None:
        write_file(out, plan_text(tuning.plan))
    if as_json:
        print_json(_content(tuning))
    else:
        print_text(str(tuning))


def _check_problem(model: str | None, *, layers: str | None, rows: int | None) -> None:
    if (model is None) == (layers is None):
        raise UsageError(
            f"give either --model ({', '.join(MODELS)}) or --layers, say --layers 12288x49152,49152x12288."
        )
    if layers is not None and rows is None:
        raise UsageError("--layers needs --rows, the batch times the sequence. Add, say, --rows 262144.")
    if layers is not None:
        _parse_layers(layers)
    else:
        choose_name(model or "", MODELS, kind="model", hint="; or give --layers")


def _problem(model: str | None, *, layers: str | None, rows: int | None, blocks: int | None) -> "GemmProblem":
    from jaxquard.gemm.autotune.models import gpt3, megatron_nlg
    from jaxquard.gemm.problem import FcLayer, GemmProblem

    if layers is not None:
        sizes = enumerate(_parse_layers(layers))
        found = tuple(FcLayer(name=f"fc{i + 1}", in_features=ins, out_features=outs) for i, (ins, outs) in sizes)
        return GemmProblem(layers=found, num_rows=rows or 1, num_blocks=blocks or 1)
    known = {"gpt3": gpt3, "megatron-nlg": megatron_nlg}[choose_name(model or "", MODELS, kind="model")]()
    return GemmProblem(layers=known.layers, num_rows=rows or known.num_rows, num_blocks=blocks or known.num_blocks)


def _parse_layers(text: str) -> list[tuple[int, int]]:
    layers = []
    for word in text.lower().split(","):
        sizes = word.strip().split("x")
        if len(sizes) != 2 or not all(map(is_count, sizes)):
            raise UsageError(f"--layers should be sizes such as 12288x49152,49152x12288, but has {word.strip()!r}.")
        layers.append((int(sizes[0]), int(sizes[1])))
    return layers


def _content(tuning: "Tuning") -> dict[str, Any]:
    return {
        "cluster": tuning.cluster,
        "num_chips": tuning.num_chips,
        "num_meshes": tuning.num_meshes,
        "table": [_row_content(row) for row in tuning.table],
    }


def _row_content(row: "TuningRow") -> dict[str, Any]:
    from jaxquard.gemm.layers.plan_file import plan_text

    return {
        "time_s": row.time_s,
        "simulated_s": row.simulated_s,
        "compute_s": row.cost.compute_s,
        "exposed_s": row.cost.exposed_s,
        "utilisation": row.utilisation,
        "memory_bytes": row.memory_bytes,
        "plan": json.loads(plan_text(row.plan)),
    }
