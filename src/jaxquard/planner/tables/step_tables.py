"""The cost tables of a step in the price cache: a second plan of the same step prices nothing.

    tables/STEP/step.json           FLOPs, and the places where stages may begin
    tables/STEP/KEY.npz             the prices on a mesh, with so many microbatches: facts, and the costs of every
                                    storage and recomputation that a search has asked for; or why there are none
    tables/STEP/names-KEY.json      names of blocks, which many meshes share
    tables/STEP/loops.json          keys of the step with the numbers of microbatches that its tables are of
    tables/STEP/loop-KEY.json       the fingerprint of a plan with one of these

Files are kept as all others of the cache are: written whole or not at all, and made anew where they cannot be read.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from jaxquard.intraop.segments.block_names import BlockNames
from jaxquard.intraop.step.fingerprint import StepFingerprint
from jaxquard.ir.codec import from_data, to_data
from jaxquard.planner.prices.step_costs import PricedStrategies
from jaxquard.planner.record.plan import Recompute
from jaxquard.planner.step.stage_boundaries import StageStart
from jaxquard.planner.tables.mesh_prices import MeshPrices, PricesKey
from jaxquard.planner.tables.step_keys import StepKeys
from jaxquard.planner.tables.table_file import DAMAGE, MeshTable, read_names, read_table, write_names, write_table
from jaxquard.pricing.cache import replace_file

_STEP_FILE, _LOOPS_FILE = "step.json", "loops.json"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """A step, whatever its mesh.

    Attributes:
        flops: of a step, without recomputation.
        starts: the places where stages may begin, in front of all segments but the first.
    """

    flops: float
    starts: tuple[StageStart, ...]


class StepTables:
    """The tables of one step.

    Args:
        folder: of the tables of all steps; None to keep nothing.
        keys: of the step; None to keep nothing.
        is_new: nothing that is kept is read; it is made anew.
    """

    def __init__(self, folder: Path | None, keys: StepKeys | None, *, is_new: bool = False) -> None:
        self._keys = keys
        self._is_new = is_new
        self._written: set[str] = set()
        self._folder = None if folder is None or keys is None else folder / keys.closed_form[:32]
        self._found: dict[PricesKey, MeshPrices | str] = {}
        # How many costs the files have.
        self._num_kept: dict[PricesKey, int] = {}
        self._names: dict[str, Mapping[int, BlockNames]] = {}
        self._names_keys: dict[int, str] = {}

    @property
    def are_kept(self) -> bool:
        """False if nothing is kept."""
        return self._folder is not None

    def find_step(self) -> StepFacts | None:
        """Returns the facts of the step; None if they are not kept."""
        content = self._read(_STEP_FILE)
        try:
            return None if content is None else from_data(StepFacts, json.loads(content), where="a table")
        except DAMAGE:
            return None

    def keep_step(self, facts: StepFacts) -> None:
        """Keeps the facts of the step."""
        # Boundaries that were found have more, which is no plain data.
        starts = [StageStart(segment=one.segment, can_begin=one.can_begin, reason=one.reason) for one in facts.starts]
        data = to_data(StepFacts(flops=facts.flops, starts=tuple(starts)))
        self._write(_STEP_FILE, json.dumps(data).encode())

    def find(self, key: PricesKey, *, price: Callable[[], PricedStrategies]) -> MeshPrices | str | None:
        """Returns the prices on a mesh, or why there are none; None if neither is kept.

        Args:
            price: prices the strategies, for costs that are not kept.
        """
        content = self._read(self._file_name(key))
        try:
            table = None if content is None else read_table(content, axes=key.axes, find_names=self._find_names)
        except DAMAGE:
            table = None
        if table is None:
            return None
        if table.facts is None:
            return table.failure
        found = MeshPrices(key, table.facts, price=price, known=table.costs)
        self._found[key], self._num_kept[key] = found, len(table.costs)
        return found

    def add(self, key: PricesKey, found: MeshPrices | str) -> None:
        """Adds prices, or why there are none, to what `save` keeps."""
        self._found[key] = found

    def save(self) -> None:
        """Keeps all that was added, with the costs that are known by now, and what was found and has more of them."""
        for key, found in self._found.items():
            num_costs = 0 if isinstance(found, str) else len(found.known)
            if num_costs == self._num_kept.get(key, -1):
                continue
            self._num_kept[key] = num_costs
            if isinstance(found, str):
                self._write(self._file_name(key), write_table(MeshTable(failure=found), names=""))
            elif self._folder is not None:
                table = MeshTable(facts=found.facts, costs=found.known)
                self._write(self._file_name(key), write_table(table, names=self._keep_names(found.facts.names)))

    def find_loop(self, num_microbatches: int, recompute: Recompute) -> str | None:
        """Returns the key of the step with so many microbatches, as the tables have it; None if it is not kept."""
        return self._loops().get(_loop_name(num_microbatches, recompute))

    def keep_loop(self, num_microbatches: int, recompute: Recompute, key: str) -> None:
        """Keeps the key of the step with so many microbatches."""
        name, loops = _loop_name(num_microbatches, recompute), self._loops()
        if loops.get(name) != key:
            self._write(_LOOPS_FILE, json.dumps({**loops, name: key}).encode())

    def find_fingerprint(self, loop: str) -> StepFingerprint | None:
        """Returns the fingerprint of the step with a number of microbatches, by its key; None if it is not kept."""
        content = self._read(f"loop-{loop[:32]}.json")
        try:
            return None if content is None else from_data(StepFingerprint, json.loads(content), where="a fingerprint")
        except DAMAGE:
            return None

    def keep_fingerprint(self, loop: str, fingerprint: StepFingerprint) -> None:
        """Keeps a fingerprint."""
        self._write(f"loop-{loop[:32]}.json", json.dumps(to_data(fingerprint)).encode())

    def _loops(self) -> dict[str, str]:
        content = self._read(_LOOPS_FILE)
        try:
            return {} if content is None else from_data(dict[str, str], json.loads(content), where="keys of loops")
        except DAMAGE:
            return {}

    def _file_name(self, key: PricesKey) -> str:
        step = "" if self._keys is None or not key.pricer else self._keys.other
        return f"{_digest(f'{step} {key}'.encode())}.npz"

    def _find_names(self, key: str) -> Mapping[int, BlockNames]:
        if key not in self._names:
            content = self._read(f"names-{key}.json")
            if content is None or _digest(content) != key:
                raise ValueError("the names of blocks are not there")
            self._names[key] = read_names(content)
            self._names_keys[id(self._names[key])] = key
        return self._names[key]

    def _keep_names(self, names: Mapping[int, BlockNames]) -> str:
        """Returns the key of names, which are kept from now on."""
        if id(names) not in self._names_keys:
            content = write_names(names)
            key = _digest(content)
            self._write(f"names-{key}.json", content)
            # The names are kept beside their key: an id is good only as long as its object lives.
            self._names.setdefault(key, names)
            self._names_keys[id(self._names[key])] = key
            return key
        return self._names_keys[id(names)]

    def _read(self, file_name: str) -> bytes | None:
        if self._is_new and file_name not in self._written:
            return None
        try:
            return None if self._folder is None else (self._folder / file_name).read_bytes()
        except OSError:
            return None

    def _write(self, file_name: str, content: bytes) -> None:
        if self._folder is None:
            return
        try:
            replace_file(self._folder / file_name, content)
            self._written.add(file_name)
        except OSError as error:  # A disk that is full or not ours costs the tables, not the plan.
            _log.warning("the prices of a step could not be kept in %s: %s", self._folder, error)
            self._folder = None


def _loop_name(num_microbatches: int, recompute: Recompute) -> str:
    return f"{num_microbatches} microbatches, recompute {recompute.value}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]
