"""A checkpoint in a line, and as data for JSON."""

from typing import TYPE_CHECKING, Any

from jaxquard.cli.console import count

if TYPE_CHECKING:
    from jaxquard.runtime.checkpoint.files.leaf_records import LeafRecord
    from jaxquard.runtime.checkpoint.verify import CheckpointReport


def report_line(report: "CheckpointReport", *, verdict: str = " is whole") -> str:
    """`runs/last is whole: 12 leaves in 14 pieces, 1.2 GB, digest 91...`."""
    from jaxquard.runtime.checkpoint.files.disk import human

    leaves = "1 leaf" if len(report.leaves) == 1 else f"{len(report.leaves)} leaves"
    digest = f"digest {report.digest}" if report.digest else "no digests: an earlier jaxquard wrote it"
    return (
        f"{report.path}{verdict}: {leaves} in {count(report.num_pieces, 'piece')}, {human(report.size_bytes)}, {digest}"
    )


def summary(report: "CheckpointReport") -> dict[str, Any]:
    """The sizes of a checkpoint and its digest, for JSON."""
    return {
        "digest": report.digest,
        "fence": report.fence,
        "num_leaves": len(report.leaves),
        "num_pieces": report.num_pieces,
        "size_bytes": report.size_bytes,
    }


def leaf_content(leaf: "LeafRecord") -> dict[str, Any]:
    """A leaf, for JSON."""
    return {
        "path": leaf.path,
        "dtype": leaf.dtype,
        "shape": list(leaf.shape),
        "num_pieces": len(leaf.pieces),
        "size_bytes": leaf.size_bytes,
        "folders": sorted({piece.folder for piece in leaf.pieces}),
    }
