"""Plans for the tests of what is done with them: one of a traced GPT on 8 devices, one of a model by name."""

from jaxquard.gemm.problem import LayerPlan, Stationary
from jaxquard.intraop.step.fingerprint import StepFingerprint
from jaxquard.planner.record.plan import (
    MemoryTerms,
    Plan,
    PlanAlternative,
    PlanBaseline,
    PlanSearchLog,
    Recompute,
    StagePlan,
    TimeTerms,
)

MB, GB = 10**6, 10**9
NUM_LAYERS = 4
# The blocks of a layer: strategy on (data, model), line, parameter.
LAYER = (
    (("rows", "columns"), "gpt.py:81", "attention.qkv"),
    (("rows", "batch 1"), "gpt.py:84", ""),
    (("rows", "contracted"), "gpt.py:88", "attention.out"),
    (("rows", "columns"), "gpt.py:93", "mlp.up"),
    (("rows", "contracted"), "gpt.py:95", "mlp.down"),
)


def _blocks():
    found = [(("rows", "contracted"), "gpt.py:60", ("params.embed",))]
    for layer in range(NUM_LAYERS):
        found += [(names, line, (f"params.layers.{layer}.{path}",) if path else ()) for names, line, path in LAYER]
    return [*found, (("2d rows", "2d columns"), "gpt.py:104", ("params.head",))]


def _stage(number, blocks, *, name, actor, forward_s, backward_s):
    strategies, lines, parameters = zip(*_blocks()[slice(*blocks)], strict=True)
    return StagePlan(
        name=name,
        actor=actor,
        blocks=blocks,
        strategies=strategies,
        lines=lines,
        parameters=parameters,
        forward_s=forward_s,
        backward_s=backward_s,
        communication_s=0.2e-3,
        memory=MemoryTerms(
            weight_bytes=30 * MB,
            gradient_bytes=30 * MB,
            optimizer_bytes=60 * MB,
            activation_bytes=(80 - 30 * number) * MB,
            working_bytes=11 * MB,
        ),
        provenance="measured on 4 x cpu, JAX 0.10.2",
    )


def traced_plan(**changes):
    """A GPT of 4 layers: 2 actors of 2 x 2 devices."""
    product = LayerPlan(name="head", stationary=Stationary("y"), slices=(2, 2, 4))
    content = {
        "model": "train:loss",
        "fingerprint": StepFingerprint(types=(("argument 0", "float32[8,16]"),), key="ab12", jax_version="0.10.2"),
        "cluster": "cpu",
        "num_devices": 8,
        "num_actors": 2,
        "axes": {"data": 2, "model": 2},
        "schedule": "1f1b",
        "num_microbatches": 8,
        "microbatch_size": 4,
        "global_batch": 32,
        "recompute": Recompute.SELECTIVE,
        "storage": "zero 1",
        "segments": (1, *(5,) * NUM_LAYERS, 1),
        "stages": (
            _stage(0, (0, 11), name="embed, layers 0 and 1", actor=0, forward_s=1.9e-3, backward_s=4.1e-3),
            _stage(1, (11, 22), name="layers 2 and 3, head", actor=1, forward_s=2.0e-3, backward_s=4.4e-3),
        ),
        "is_proven": True,
        "products": {"21": (product,)},
        "time_s": 0.0612,
        "times": TimeTerms(
            compute_s=44e-3,
            recompute_s=2.1e-3,
            collective_s=5.3e-3,
            transfer_s=0.6e-3,
            bubble_s=6.1e-3,
            gradient_s=1.9e-3,
            optimizer_s=1.2e-3,
        ),
        "memory": MemoryTerms(
            weight_bytes=30 * MB,
            gradient_bytes=30 * MB,
            optimizer_bytes=60 * MB,
            activation_bytes=80 * MB,
            working_bytes=11 * MB,
        ),
        "memory_limit_bytes": 256 * MB,
        "mfu": 0.3127,
        "flops": 3.1e11,
        "baselines": (
            PlanBaseline(name="data parallel", time_s=0.0698, memory_bytes=412 * MB, mfu=0.274, fits=False),
            PlanBaseline(name="fsdp", time_s=0.0744, memory_bytes=190 * MB, mfu=0.257, note="gathers are not hidden"),
            PlanBaseline(name="megatron tp 2 x pp 2 x dp 2", time_s=0.0634, memory_bytes=214 * MB, mfu=0.302),
            PlanBaseline(name="best single axis", time_s=float("inf"), memory_bytes=0, note="no axis divides 3 heads"),
        ),
        "alternatives": (
            PlanAlternative(
                part="schedule",
                chosen="1f1b",
                alternative="gpipe",
                added_s=0.0,
                added_bytes=210 * MB,
                deciding="memory",
            ),
            PlanAlternative(
                part="schedule", chosen="1f1b", alternative="interleaved, 4 stages", added_s=1.4e-3, deciding="transfer"
            ),
            PlanAlternative(
                part="microbatches",
                chosen="8",
                alternative="16",
                added_s=-1.1e-3,
                added_bytes=60 * MB,
                deciding="memory",
            ),
            PlanAlternative(
                part="recompute",
                chosen="selective",
                alternative="none",
                added_s=-2.1e-3,
                added_bytes=88 * MB,
                deciding="memory",
            ),
            PlanAlternative(
                part="stages", chosen="2", alternative="4 stages on 4 actors", added_s=5.2e-3, deciding="bubble"
            ),
            PlanAlternative(
                part="mesh",
                chosen="data=2 x model=2",
                alternative="data=4 x model=1",
                added_s=3.9e-3,
                added_bytes=44 * MB,
                deciding="gradient",
            ),
            PlanAlternative(
                part="block 1",
                chosen="rows/columns",
                alternative="rows/rows",
                added_s=0.8e-3,
                deciding="collective",
            ),
            PlanAlternative(
                part="block 4",
                chosen="rows/columns",
                alternative="rows/contracted",
                added_s=2.2e-3,
                deciding="collective",
            ),
            PlanAlternative(
                part="block 21",
                chosen="2d rows/2d columns",
                alternative="rows/columns",
                added_s=0.3e-3,
                added_bytes=-4 * MB,
                deciding="compute",
            ),
        ),
        "log": PlanSearchLog(
            num_seen=1204,
            num_pruned=890,
            num_priced=314,
            num_simulated=16,
            num_measured=4,
            num_programs=96,
            time_s=21.4,
            left_out=("zero 3 was not searched for 8 microbatches: the budget of 20 s was over.",),
        ),
        "provenance": "measured on 4 x cpu, JAX 0.10.2; whole steps on 8 x cpu",
        "notes": ("the batch of 32 rows allows 1, 2, 4, 8, 16 and 32 microbatches.",),
    }
    return Plan(**{**content, **changes})


def named_plan(**changes):
    """A model by name: 32 stages of 126 layers, interleaved on 16 actors of 1,024 devices."""
    num_stages, num_layers = 32, 126
    stops = [num_layers * (number + 1) // num_stages for number in range(num_stages)]
    stages = tuple(
        StagePlan(
            name=f"layers {start} to {stop - 1}",
            actor=number % 16,
            blocks=(start, stop),
            strategies=(("rows", "columns"),) * (stop - start),
            forward_s=5.1e-3 * (stop - start),
            backward_s=10.4e-3 * (stop - start),
            memory=MemoryTerms(weight_bytes=2 * GB, optimizer_bytes=GB, activation_bytes=20 * GB),
            provenance="modelled",
        )
        for number, (start, stop) in enumerate(zip([0, *stops], stops, strict=False))
    )
    content = {
        "model": "llama3:405b",
        "cluster": "h100-8x2048",
        "num_devices": 16384,
        "num_actors": 16,
        "axes": {"data": 128, "model": 8},
        "schedule": "interleaved",
        "num_microbatches": 16,
        "microbatch_size": 128,
        "global_batch": 2048,
        "stages": stages,
        "time_s": 4.83,
        "times": TimeTerms(compute_s=3.9, collective_s=0.4, bubble_s=0.33, gradient_s=0.2),
        "memory": MemoryTerms(
            weight_bytes=6 * GB, gradient_bytes=12 * GB, optimizer_bytes=2 * GB, activation_bytes=44 * GB
        ),
        "memory_limit_bytes": 80 * GB,
        "mfu": 0.412,
        "flops": 3.9e19,
        "baselines": (
            PlanBaseline(
                name="published: tp 8 x pp 16 x dp 128",
                time_s=5.01,
                memory_bytes=66 * GB,
                mfu=0.40,
                source="The Llama 3 Herd of Models, table 4",
            ),
            PlanBaseline(name="fsdp", time_s=9.7, memory_bytes=91 * GB, mfu=0.21, fits=False),
        ),
        "provenance": "modelled for h100-8x2048",
        "settings": {"sequence parallel": "yes", "context": "1"},
    }
    return Plan(**{**content, **changes})
