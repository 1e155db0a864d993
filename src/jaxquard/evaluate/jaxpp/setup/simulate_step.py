"""One training step, simulated: the stages priced by the model, the schedule played on the paper's cluster.

What a system recomputes is not in the paper. Ours is the smallest share of layers, in eighths, with which the step fits
the memory of a GPU; a pipeline inside one SPMD program runs one loop over its stages, and recomputes all or nothing.
"""

from dataclasses import dataclass, replace

from jaxquard.cluster import load_cluster
from jaxquard.pricing import Parallelism, Transformer, find_system, find_transformer, price_step, stage_costs
from jaxquard.pricing.model.price_step import RESERVED_SHARE
from jaxquard.schedules import GPipe, Interleaved, OneFOneB, Schedule
from jaxquard.simulate import PipelinePlayback, link_actors, play_pipeline

SPMD = "JAX SPMD PP"
_SEQUENCES = {"GPT3-175B": 2048, "Llama2-70B": 4096}
_EIGHTHS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSetup:
    """A step to simulate.

    Attributes:
        num_chunks: stages an actor, the paper's circular repeat.
        shard_group: GPUs among which FSDP shards; 0: no FSDP.
        task_s: that the runtime adds to each task.
        recompute_share: of the layers; None: the smallest that fits.
    """

    system: str
    model: str
    num_gpus: int
    tensor: int = 1
    pipeline: int = 1
    num_chunks: int = 1
    shard_group: int = 0
    microbatch: int
    global_batch: int
    task_s: float = 0.0
    has_synchronous_sends: bool = False
    recompute_share: float | None = None

    @property
    def data(self) -> int:
        """Replicas, those of FSDP among them."""
        return self.num_gpus // (self.tensor * self.pipeline)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedStep:
    """A simulated step.

    Attributes:
        tflops: model FLOPs for each GPU and second, in 10^12, as Megatron counts them: attention without its mask.
        recompute_share: of the layers.
        fits: with that share in the memory of a GPU.
    """

    step_time_s: float
    tflops: float
    bubble: float
    peak_bytes: int
    recompute_share: float
    fits: bool


class StepSimulator:
    """Simulates steps, each once."""

    def __init__(self) -> None:
        self._done: dict[StepSetup, SimulatedStep] = {}

    def step(self, setup: StepSetup) -> SimulatedStep:
        """Returns the simulated step, with the smallest share of recomputed layers that fits unless it says one."""
        if setup not in self._done:
            self._done[setup] = self._find(setup)
        return self._done[setup]

    def _find(self, setup: StepSetup) -> SimulatedStep:
        if setup.recompute_share is not None:
            return _simulate(setup)
        counts = (0, _EIGHTHS) if setup.system == SPMD else range(_EIGHTHS + 1)
        found = None
        for count in counts:
            found = self.step(replace(setup, recompute_share=count / _EIGHTHS))
            if found.fits:
                break
        assert found is not None, counts
        return found


def transformer_of(model: str) -> Transformer:
    """Returns a model of the paper."""
    return find_transformer(model, seq=_SEQUENCES[model])


def parallelism_of(setup: StepSetup) -> Parallelism:
    """Returns the strategy of a step."""
    system = find_system(setup.system)
    share = setup.recompute_share or 0.0
    return Parallelism(
        tensor=setup.tensor,
        sequence=system.sequence and setup.tensor > 1,
        pipeline=setup.pipeline,
        num_chunks=setup.num_chunks,
        data=setup.data,
        zero=3 if setup.shard_group else system.zero,
        shard_group=setup.shard_group,
        microbatch=setup.microbatch,
        global_batch=setup.global_batch,
        recompute="full" if share else "none",
        recompute_share=share or 1.0,
        schedule=_schedule(setup)[0],
    )


def _schedule(setup: StepSetup) -> tuple[str, Schedule]:
    num_stages = setup.pipeline * setup.num_chunks
    if setup.system == SPMD:
        return "gpipe", GPipe(num_stages)
    if setup.num_chunks > 1:
        return "interleaved", Interleaved(num_stages, setup.pipeline)
    return "1f1b", OneFOneB(num_stages)


def play_setup(setup: StepSetup) -> PipelinePlayback:
    """Plays the pipeline of a step."""
    parallelism, cluster = parallelism_of(setup), load_cluster(f"h100-8x{max(1, setup.num_gpus // 8)}")
    costs = stage_costs(
        transformer_of(setup.model), parallelism, cluster, find_system(setup.system), task_s=setup.task_s
    )
    _, schedule = _schedule(setup)
    return play_pipeline(
        schedule,
        costs,
        num_microbatches=parallelism.num_microbatches,
        links=link_actors(cluster, num_actors=setup.pipeline, chips_apart=setup.tensor * setup.data),
        synchronous_sends=setup.has_synchronous_sends,
    )


def _simulate(setup: StepSetup) -> SimulatedStep:
    transformer, parallelism = transformer_of(setup.model), parallelism_of(setup)
    cluster = load_cluster(f"h100-8x{max(1, setup.num_gpus // 8)}")
    if setup.pipeline == 1:
        price = price_step(transformer, parallelism, cluster, find_system(setup.system))
        step_time_s, bubble, peak_bytes = price.time_s, 0.0, round(price.peak_bytes)
    else:
        playback = play_setup(setup)
        step_time_s, bubble, peak_bytes = playback.step_time_s, playback.bubble, max(playback.peaks_bytes)
    flops = transformer.flops_per_token() * transformer.seq * setup.global_batch
    return SimulatedStep(
        step_time_s=step_time_s,
        tflops=flops / step_time_s / setup.num_gpus / 1e12,
        bubble=bubble,
        peak_bytes=peak_bytes,
        recompute_share=setup.recompute_share or 0.0,
        fits=peak_bytes <= cluster.memory.size_bytes * (1 - RESERVED_SHARE),
    )
