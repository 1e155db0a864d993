"""The file of cells: what was run, kept so that it need not run again and can be drawn elsewhere."""

import dataclasses
from pathlib import Path

from jaxquard.evaluate.cfp.cells.cell import Cell, Depth
from jaxquard.evaluate.common import results_file
from jaxquard.ir.codec import to_data

SCHEMA = "jaxquard.reproduce.cfp"
VERSION = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """All that was run, in the order in which it was.

    Attributes:
        depths: analysis and search by depth (Figure 13).
    """

    cells: tuple[Cell, ...] = ()
    depths: tuple[Depth, ...] = ()

    @property
    def cluster(self) -> str | None:
        """The cluster that cells are priced for; None if they were measured."""
        return next((cell.cluster for cell in self.cells), None)


def without_quick_cells(results: Results) -> Results:
    """Returns what a figure may put together: the cells of quick runs only if there are no others."""
    full = tuple(cell for cell in results.cells if not cell.spec.is_thin)
    return dataclasses.replace(results, cells=full or results.cells)


def results_text(results: Results) -> str:
    """Returns the results as JSON."""
    return results_file.results_text(SCHEMA, VERSION, to_data(results))


def read_results(path: Path) -> Results:
    """Reads results that `results_text` wrote.

    Raises:
        JaxquardError: if the file is not there, or is something else.
    """
    return results_file.read_results(path, Results, schema=SCHEMA, version=VERSION, command="jaxquard reproduce cfp")
