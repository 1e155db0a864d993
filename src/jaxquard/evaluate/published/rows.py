"""Files of published figures: which of the three kinds one is, and its rows.

A kind is recognised by its columns. A file that has others is refused with their names, so that a figure is never read
from the wrong column.
"""

import csv
import enum
import io
from dataclasses import dataclass
from pathlib import Path

from jaxquard.errors import PublishedDataError

STEP_COLUMNS = tuple(
    "id,source,source_kind,system,model,params_b,layers,hidden,heads,vocab,seq,hardware,n_dev,tp,pp,vpp,dp,cp,ep,fsdp,"
    "schedule,mbs,gbs,num_microbatches,precision,recompute,step_time_s,tflops_per_dev,flops_convention,mfu_pct,"
    "tok_s_dev,mem_gb,tier,notes".split(",")
)
BUBBLE_COLUMNS = tuple(
    "table,source,model,layers,heads,hidden,seq,hw,p,m,mbs,chunks,schedule,TF_ms,TB_ms,TW_ms,Tcomm_ms,bubble_rate,"
    "samples_per_gpu_s,mem_gb".split(",")
)
MEMORY_COLUMNS = tuple("model,layers,hidden,heads,seq,tp,pp,vpp,mbs,mode,metric,value,source".split(","))
_FOLDER = Path(__file__).parent / "data"


class DataKind(enum.Enum):
    """The kinds of published figures, each with its columns."""

    STEPS = "steps"
    BUBBLES = "bubbles"
    MEMORY = "memory"


_COLUMNS = {DataKind.STEPS: STEP_COLUMNS, DataKind.BUBBLES: BUBBLE_COLUMNS, DataKind.MEMORY: MEMORY_COLUMNS}
# Without these no row of the kind can be judged; the others may be left out of a file.
_NEEDED = {
    DataKind.STEPS: {"id", "system", "model", "seq", "hardware", "n_dev"},
    DataKind.BUBBLES: {"p", "m", "schedule", "TF_ms", "TB_ms", "TW_ms", "bubble_rate"},
    DataKind.MEMORY: {"model", "tp", "pp", "mode", "metric", "value"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedFile:
    """The rows of a file, each a dict of column and text."""

    kind: DataKind
    name: str
    rows: tuple[dict[str, str], ...]


def read_published(path: Path) -> PublishedFile:
    """Reads a file of published figures.

    Raises:
        PublishedDataError: if it cannot be read, or its columns are of no kind; the message names them.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise PublishedDataError(f"cannot read {path} ({reason}). Give --data a CSV file.") from None
    reader = csv.DictReader(io.StringIO(text))
    columns = [name for name in reader.fieldnames or [] if name]
    kind = _find_kind(path, columns)
    rows = tuple({name: (row.get(name) or "").strip() for name in columns} for row in reader)
    return PublishedFile(kind=kind, name=path.name, rows=rows)


def _find_kind(path: Path, columns: list[str]) -> DataKind:
    present = set(columns)
    for kind, needed in _NEEDED.items():
        if needed <= present:
            unknown = [name for name in columns if name not in _COLUMNS[kind]]
            if unknown:
                raise PublishedDataError(
                    f"{path.name} has columns of published {kind.value}, and others: {', '.join(unknown)}. Leave them "
                    f"out; there are {', '.join(_COLUMNS[kind])}."
                )
            return kind
    nearest = min(_NEEDED, key=lambda kind: len(_NEEDED[kind] - present))
    missing = sorted(_NEEDED[nearest] - present)
    unknown = [name for name in columns if name not in _COLUMNS[nearest]]
    raise PublishedDataError(
        f"{path.name} has the columns {', '.join(columns) or 'of an empty file'}, which are of no kind of published "
        f"figures. For {nearest.value} it lacks {', '.join(missing)}"
        + (f", and has {', '.join(unknown)} besides" if unknown else "")
        + "."
    )


def own_files() -> tuple[PublishedFile, ...]:
    """Returns the files that jaxquard has: steps, bubbles and memory."""
    return tuple(read_published(_FOLDER / f"published_{kind.value}.csv") for kind in DataKind)
