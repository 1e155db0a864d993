"""The numbers that JaxPP's text and Table 1 give."""

from dataclasses import dataclass

from jaxquard.evaluate.common.paper import PaperHeadline, paper_headlines, read_paper


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A row of Table 1.

    Attributes:
        num_microbatches: the paper's gradient accumulations.
        data: data-parallel replicas, beside those of FSDP.
    """

    system: str
    model: str
    global_batch: int
    num_microbatches: int
    num_gpus: int
    pipeline: int
    tensor: int
    data: int
    fsdp: int
    step_time_s: float
    tflops: float

    @property
    def label(self) -> str:
        return f"{self.system}, {self.model}, {self.num_gpus} GPUs"


@dataclass(frozen=True, slots=True, kw_only=True)
class JaxppPaper:
    """All of it."""

    headlines: tuple[PaperHeadline, ...]
    table_1: tuple[TableRow, ...]

    def row(self, system: str, model: str = "GPT3-175B", num_gpus: int | None = None) -> TableRow:
        """Returns the first row of a system and a model, or the one with so many GPUs."""
        return next(
            row
            for row in self.table_1
            if (row.system, row.model) == (system, model) and num_gpus in (None, row.num_gpus)
        )

    def value(self, key: str) -> float:
        """Returns the paper's value of a headline."""
        return next(headline.value for headline in self.headlines if headline.key == key)


def load_jaxpp_paper() -> JaxppPaper:
    """Reads the file in the package."""
    content = read_paper("jaxquard.evaluate.jaxpp")
    return JaxppPaper(headlines=paper_headlines(content), table_1=tuple(TableRow(**row) for row in content["table_1"]))
