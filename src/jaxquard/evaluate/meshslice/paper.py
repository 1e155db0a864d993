"""The numbers that MeshSlice's text gives: headlines, Tables 2 and 3, and some more."""

from dataclasses import dataclass
from typing import Any

from jaxquard.evaluate.common.paper import PaperHeadline, paper_headlines, read_paper


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """All of it; tables by model, then by column, in percent."""

    headlines: tuple[PaperHeadline, ...]
    table_2: dict[str, dict[str, float]]
    table_3: dict[str, dict[str, float]]
    figure_15_mean_error: float
    traffic_25d_gb: float
    traffic_meshslice_mb: float

    def value(self, key: str) -> float:
        """Returns the paper's value of a headline."""
        return next(headline.value for headline in self.headlines if headline.key == key)


def load_paper() -> Paper:
    """Reads the file in the package."""
    content = read_paper("jaxquard.evaluate.meshslice")
    return Paper(
        headlines=paper_headlines(content),
        table_2=_by_model(content["table_2"]),
        table_3=_by_model(content["table_3"]),
        figure_15_mean_error=content["figure_15"]["mean_error"],
        traffic_25d_gb=content["section_7"]["traffic_25d_gb"],
        traffic_meshslice_mb=content["section_7"]["traffic_meshslice_mb"],
    )


def _by_model(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    return {row["model"]: {column: value for column, value in row.items() if column != "model"} for row in rows}
