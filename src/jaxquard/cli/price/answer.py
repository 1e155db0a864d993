"""The price of a step as text and as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from jaxquard.cli.console import count, print_line
from jaxquard.cli.price.price_on_target import PricedStep
from jaxquard.pricing import WalkedCollective

_MOST_ROWS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class _CollectiveRow:
    """Collectives of one kind, size and group, together."""

    opcode: str
    group_size: int
    size_bytes: int
    times: int
    time_s: float
    exposed_s: float


def _rows(collectives: Sequence[WalkedCollective]) -> list[_CollectiveRow]:
    """Returns the collectives, equal ones together, those that take longest first."""
    found: dict[tuple[str, int, int], list[WalkedCollective]] = {}
    for one in collectives:
        found.setdefault((one.opcode, one.group_size, one.size_bytes), []).append(one)
    rows = [
        _CollectiveRow(
            opcode=opcode,
            group_size=group_size,
            size_bytes=size_bytes,
            times=sum(one.times for one in equal),
            time_s=sum(one.times * one.time_s for one in equal),
            exposed_s=sum(one.exposed_s for one in equal),
        )
        for (opcode, group_size, size_bytes), equal in found.items()
    ]
    return sorted(rows, key=lambda row: -row.time_s)


def price_content(priced: PricedStep) -> dict[str, Any]:
    """Returns the answer for JSON."""
    walked, compiled = priced.walked, priced.compiled
    return {
        "model": priced.model,
        "strategy": priced.strategy,
        "cluster": priced.cluster.name,
        "mesh": dict(priced.mesh.shape),
        "device_kind": priced.device_kind,
        "pricer": "compiled",
        "time_s": walked.time_s,
        "compute_s": walked.compute_s,
        "communication_s": walked.communication_s,
        "flops": walked.flops,
        "utilisation": _utilisation(priced),
        "peak_bytes": compiled.peak_bytes,
        "argument_bytes": compiled.argument_bytes,
        "temporary_bytes": compiled.temporary_bytes,
        "memory_bytes": priced.cluster.memory.size_bytes,
        "fits": compiled.peak_bytes <= priced.cluster.memory.size_bytes,
        "collectives": [
            {
                "opcode": row.opcode,
                "group_size": row.group_size,
                "size_bytes": row.size_bytes,
                "times": row.times,
                "time_s": row.time_s,
                "exposed_s": row.exposed_s,
            }
            for row in _rows(walked.collectives)
        ],
    }


def _utilisation(priced: PricedStep) -> float:
    walked = priced.walked
    return walked.flops / walked.time_s / priced.cluster.compute.peak_flops_per_s if walked.time_s else 0.0


def print_price(console: Console, priced: PricedStep) -> None:
    """Prints the answer."""
    walked, compiled = priced.walked, priced.compiled
    sizes = "x".join(str(size) for size in priced.mesh.shape.values())
    print_line(
        console,
        f"{priced.model} with {priced.strategy} on {priced.cluster.name} (mesh {sizes}, {priced.device_kind}): "
        f"{_milliseconds(walked.time_s)} a step",
        style="bold",
    )
    print_line(
        console,
        f"{_milliseconds(walked.compute_s)} of computation, {_milliseconds(walked.communication_s)} of communication "
        f"that is not hidden; {_utilisation(priced):.0%} of the chips' peak FLOP/s",
    )
    print_line(
        console,
        f"{compiled.peak_bytes / 1e9:.2f} GB of {priced.cluster.memory.size_bytes / 1e9:.0f} GB on each chip: "
        f"{compiled.argument_bytes / 1e9:.2f} GB of state and batch, {compiled.temporary_bytes / 1e9:.2f} GB of "
        "temporaries",
    )
    rows = _rows(walked.collectives)
    if rows:
        console.print(_table(rows[:_MOST_ROWS]))
    if len(rows) > _MOST_ROWS:
        rest = rows[_MOST_ROWS:]
        print_line(console, f"and {count(len(rest), 'kind')} more, {_milliseconds(sum(row.time_s for row in rest))}")
    print_line(
        console,
        "The program and its memory are the compiler's; seconds are modelled from the figures of "
        f"{priced.cluster.name}.",
        style="dim",
    )


def _table(rows: Sequence[_CollectiveRow]) -> Table:
    table = Table(box=None, pad_edge=False)
    for header in ("collective", "group", "bytes", "times", "time", "not hidden"):
        table.add_column(header, justify="left" if header == "collective" else "right")
    for row in rows:
        table.add_row(
            row.opcode,
            str(row.group_size),
            _size(row.size_bytes),
            str(row.times),
            _milliseconds(row.time_s),
            _milliseconds(row.exposed_s),
        )
    return table


def _milliseconds(time_s: float) -> str:
    return f"{time_s * 1e3:.2f} ms" if time_s < 10 else f"{time_s:.2f} s"


def _size(size_bytes: float) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= size:
            return f"{size_bytes / size:.1f} {unit}"
    return f"{size_bytes:.0f} B"
