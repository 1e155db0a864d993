"""The words of the page that differ between cells measured on a machine and cells priced for a cluster."""

from dataclasses import dataclass

from jaxquard.evaluate.cfp.cells.results_file import Results


@dataclass(frozen=True, slots=True, kw_only=True)
class PageWords:
    """The sources of numbers, in words.

    Attributes:
        intro: after the count of verdicts; with the place for the machines.
        caveats: what that makes of the paper's numbers.
        throughput: the title of the numbers of Figure 7.
        communication: the time that Figure 8 shows.
        shallow: what the prediction of a shallow model is (Figure 10).
        x_name: of Figure 10.
        work: the seconds of Figure 12.
        method_title, method, left_out: how it was done, and what was not.
    """

    intro: str
    caveats: str
    throughput: str
    communication: str
    shallow: str
    x_name: str
    work: str
    method_title: str
    method: str
    left_out: str


_BASELINES = (
    "Alpa itself does not run here: its rule, the minimum symbolic volume, is an integer program over the same blocks. "
    "PyTorch and DeepSpeed-Megatron stand as data parallelism and Megatron's tensor parallelism, in the same harness."
)
_STRATEGIES = (
    "The strategies take the same choice in all layers of a kind, one kind at a time; all other choices are those of "
    "the chosen plan, or of the fastest finalist where that is a baseline with choices of its own; state is kept as it "
    "is used."
)
MEASURED = PageWords(
    intro=(
        "Everything here was measured: whole training steps as real SPMD programs, on virtual devices of a CPU "
        "({machines}). The paper ran models of billions of parameters on GPUs. So seconds, bytes and the size of a "
        "gain cannot be compared. What can: whether the plan of minimum volume is the fastest, whether prices of parts "
        "predict the whole, whether the search finds what running everything finds, and what a search costs."
    ),
    caveats=(
        "On this machine devices share one memory and the same cores. Sending is copying, so that bytes cost little; a "
        "collective costs a meeting of all devices; and work that is not sharded is done once by each device on the "
        f"same cores. {_BASELINES}"
    ),
    throughput="Tokens a second of whole steps, by runs side by side.",
    communication="time is that in which no device computes",
    shallow="so in a shallow model that prediction is a second measurement, and its error is what runs wander by",
    x_name="measured, ms",
    work="Compiling is added up over all programs; both as done is the clock, with as many compilers as cores.",
    method_title="Our own targets, and how it was measured",
    method=(
        "Every cell is one search as `jq.search_sharding` does it. Then the chosen plan, the finalists, the baselines "
        "and the strategies of the layers are compiled whole, once; all run a few times; then the best ten, the chosen "
        "one and the baselines in turns, 30 to 90 times each. Times are in the mean as long as the fastest run of "
        f"each, and in the ratios that the runs of most rounds show, side by side. {_STRATEGIES}"
    ),
    left_out=(
        "Not done: models of the paper's size, several nodes, GPUs with and without NVLink. Communication is separated "
        "from computation by JAX's profiler in runs of their own, and its share applied to the others."
    ),
)
_PRICED = PageWords(
    intro=(
        "Nothing here ran: every time is priced for {cluster} by its own compiler. The compiler fuses, rewrites and "
        "schedules each program as for the real chips ({machines}); the seconds of each operation and collective come "
        "from the figures of the cluster's file, and some of these are estimates, which the file marks. So ratios can "
        "be compared with the paper's, within what those figures are worth; seconds are no measurements."
    ),
    caveats=(
        "The compiler is today's, not that of the paper: it shards random numbers, merges collectives and overlaps "
        f"them with computation in its own way. {_BASELINES}"
    ),
    throughput="Tokens a second of whole steps, priced.",
    communication="time is that in which the schedule waits for a collective",
    shallow="so in a shallow model that prediction is the price of the whole step itself, and has no error",
    x_name="priced whole, ms",
    work=(
        "This machine compiles for the cluster, and nothing runs. Compiling is added up over all programs, in seconds "
        "of the processor; both as done is the clock."
    ),
    method_title="Our own targets, and how it was priced",
    method=(
        "Every cell is one search as `jq.search_sharding` does it, with the compile pricer. Then the chosen plan, the "
        "finalists, the baselines and strategies of the layers are compiled whole for the cluster. The schedule of "
        "each is walked with compute, memory and links as resources: time, communication that is not hidden; memory "
        f"is the compiler's own account, and what takes more than a chip has is too large. {_STRATEGIES}"
    ),
    left_out="Not done: runs on the cluster, whole depths of the models, all batches of the paper.",
)
_V100 = (
    " CUDA 13 does not compile for a V100 (compute capability 7.0): its programs are compiled for 7.5, the nearest "
    "that it knows, and take their seconds from the V100's figures."
)


def page_words(results: Results) -> PageWords:
    """Returns the words for the cells of a page."""
    return MEASURED if results.cluster is None else _PRICED


def intro_text(results: Results) -> str:
    """Returns what the numbers of the page are."""
    machines = "; ".join(dict.fromkeys(cell.machine for cell in results.cells if cell.machine)) or "no cell ran"
    cluster = results.cluster or ""
    text = page_words(results).intro.format(machines=machines, cluster=cluster)
    if any(cell.spec.size for cell in results.cells):
        text += " Layers have the paper's sizes, two of each model unless a cell says otherwise."
    return text + (_V100 if cluster.startswith("v100") else "")
