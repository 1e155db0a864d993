"""Cells of the evaluation, to run and as they ran: plain data, so that what one machine measures another can draw.

A cell is measured on the machine that ran it, or priced for a cluster by its compiler; the two are never mixed in one
file, and each says which it is (`Cell.cluster`).
"""

import enum
from dataclasses import dataclass, field

from jaxquard.ir.codec import stored


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSpec:
    """A cell before it runs; two that are equal need not both run.

    Attributes:
        model: `gpt`, `bert`, `llama` or `moe`.
        mesh: sizes of the mesh axes, the outer one first.
        memory_limit_bytes: what a step may take on each device.
        memory_limit_share: the same as a part of what data parallelism takes, as predicted.
        num_strategies: how many strategies of the layers are run whole as well: a third the fastest by equation (8),
            a third those of minimum volume, and others; None for all, 0 for none. Where layers are of several kinds,
            one kind at a time takes them.
        num_finalists: how many plans of the search are priced whole, or in pairs of neighbours.
        is_thin: each block has two choices only, that of data parallelism and that of Megatron.
        dropout_rate: of the model.
        optimizer: "adam" or "sgd".
        size: the published model that gives what is not said here, such as "gpt-2.6b"; None for a small one.
        dtype: what matrix products compute in.
    """

    model: str
    num_layers: int
    model_dim: int
    batch_size: int
    sequence_length: int = 32
    vocab_size: int = 512
    mesh: tuple[int, ...] = (8,)
    memory_limit_bytes: int | None = None
    memory_limit_share: float | None = None
    num_strategies: int | None = 0
    num_finalists: int = 8
    is_thin: bool = False
    dropout_rate: float = 0.1
    optimizer: str = "adam"
    size: str | None = None
    dtype: str = "float32"

    @property
    def name(self) -> str:
        """`gpt, 2 layers of 256, batch 8, mesh 2x4, at most 70 % of data parallel`; `of gpt-2.6b` for a known size."""
        layers = f"{self.num_layers} layer{'' if self.num_layers == 1 else 's'}"
        words = [self.model, f"{layers} of {self.size or self.model_dim}", f"batch {self.batch_size}"]
        if len(self.mesh) > 1 or self.size is not None:
            words.append(f"mesh {'x'.join(map(str, self.mesh))}")
        if self.memory_limit_bytes is not None:
            words.append(f"at most {self.memory_limit_bytes / 2**20:.4g} MiB")
        if self.memory_limit_share is not None:
            words.append(f"at most {self.memory_limit_share:.0%} of data parallel")
        return ", ".join(words)

    @property
    def has_limit(self) -> bool:
        """True if memory is limited."""
        return self.memory_limit_bytes is not None or self.memory_limit_share is not None


# A choice on every mesh axis, for every block of the step.
Choices = tuple[tuple[str, ...], ...]

# Equal programs of other models, as of reshards, are known here and there.
_FEW = 0.15


class Role(enum.Enum):
    """The reason why a plan was looked at."""

    FINALIST = "finalist"
    BASELINE = "baseline"
    STRATEGY = "strategy"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRun:
    """A plan, predicted and run whole, or priced whole for a cluster; None for what was not asked or is not known.

    Attributes:
        choices: per block.
        storage: how state is kept between steps.
        volume_bytes: what each device sends, by Alpa's symbolic rules.
        compiled_bytes: the same of the collectives in the compiled step.
        predicted_s: by the prices of parts and of what neighbours share.
        sum_s: by equation (8).
        predicted_bytes: by the programs of the prediction; of strategies, which have none, by equation (9).
        coarse_s: the minimum of a few runs, at the machine's pace in the many.
        measured_s: by many runs in turns with the others, side by side with them (`paired_times`).
        minimum_s: the minimum of these.
        spread: how far their upper quartile lies above the minimum, as a part of it.
        error: the standard error of `measured_s` against those of the others, as a part of it; 0 of `priced_s`.
        priced_s: by the schedule of the whole step as a cluster's compiler has it. Nothing ran.
        compute_s: of a step, on one device; and `communication_s`.
        peak_bytes: of the compiled step, on each device.
        failure: the reason why it failed.
    """

    name: str
    role: Role
    choices: Choices = field(repr=False)
    storage: str
    volume_bytes: float
    compiled_bytes: float | None = None
    predicted_s: float | None = None
    sum_s: float | None = None
    predicted_bytes: int | None = None
    coarse_s: float | None = None
    measured_s: float | None = None
    minimum_s: float | None = field(default=None, metadata=stored(formerly=("least_s",)))
    spread: float | None = None
    error: float | None = None
    compute_s: float | None = None
    communication_s: float | None = None
    peak_bytes: int | None = None
    failure: str | None = None
    priced_s: float | None = None

    @property
    def whole_s(self) -> float | None:
        """The time of the whole step: measured, or priced for a cluster."""
        return self.measured_s if self.priced_s is None else self.priced_s

    @property
    def time_s(self) -> float | None:
        """The best that is known of what it takes."""
        return self.coarse_s if self.whole_s is None else self.whole_s


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockInfo:
    """A block: its segment and that one's kind, what its first product multiplies with, and where that stands."""

    segment: int
    kind: int
    weight: str
    line: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """The seconds of each part of a cell's work.

    Attributes:
        traced: the user's step to a jaxpr.
        analysed: blocks and segments.
        lowered, compiled, profiled: of the programs of segments; compiling is added up over all of them, so that
            parallel compilers do not shorten it. None where the pricer does not report it.
        priced: all of these on the clock.
        composed: the search over prices.
        predicted: pricing finalists and baselines, on the clock.
        whole_compiled, whole_run: running plans whole, which is no part of a search.
    """

    traced: float = 0.0
    analysed: float = 0.0
    lowered: float | None = None
    compiled: float | None = None
    profiled: float | None = None
    priced: float = 0.0
    composed: float = 0.0
    predicted: float = 0.0
    whole_compiled: float = 0.0
    whole_run: float = 0.0

    @property
    def searched(self) -> float:
        """All that a search takes, on the clock."""
        return self.traced + self.analysed + self.priced + self.composed + self.predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A cell of the evaluation, as it ran.

    Attributes:
        limit_bytes: the memory limit that was used.
        chosen: the name of the plan that the search chose; None if nothing fits.
        num_programs: what was priced for the search, as equation (7) counts.
        equation_7: the programs of equation (7) for the blocks and segments found, with one block on each side of a
            boundary.
        num_known: of the prices, those that came from a cache, so that they took no time.
        machine: in words; of a cluster, its figures and its compiler.
        failure: why nothing was chosen.
        cluster: the one that it is priced for by its compiler; None if it was measured on the machine.
    """

    spec: CellSpec
    limit_bytes: int | None
    runs: tuple[PlanRun, ...]
    chosen: str | None
    num_programs: int
    equation_7: int
    num_known: int
    blocks: tuple[BlockInfo, ...] = field(repr=False)
    seconds: Seconds
    machine: str
    failure: str | None = None
    cluster: str | None = None

    @property
    def is_measured_anew(self) -> bool:
        """True if nearly all prices were made for this cell, so that its seconds are those of a search."""
        return self.num_known <= _FEW * self.num_programs

    def run(self, name: str) -> PlanRun | None:
        """A plan by its name."""
        return next((run for run in self.runs if run.name == name), None)

    @property
    def best(self) -> PlanRun | None:
        """The plan that the search chose."""
        return None if self.chosen is None else self.run(self.chosen)

    def fits(self, run: PlanRun) -> bool:
        """Returns whether a plan ran within the limit; without one, whether it ran."""
        if run.time_s is None or run.peak_bytes is None:
            return False
        return self.limit_bytes is None or run.peak_bytes <= self.limit_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """Seconds for a model of some depth: blocks and segments, and the search over prices."""

    model: str
    num_layers: int
    num_segments: int
    num_programs: int
    traced_s: float
    analysed_s: float
    composed_s: float
    machine: str = ""
