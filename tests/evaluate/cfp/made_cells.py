"""Hand-made cells, so that figures can be tested without measuring anything."""

import itertools
from dataclasses import replace

from jaxquard.evaluate.cfp.cells.cell import BlockInfo, Cell, CellSpec, Depth, PlanRun, Role, Seconds
from jaxquard.evaluate.cfp.cells.results_file import Results

NAMES = ("rows", "columns", "contracted")
MIB = 2**20
# Milliseconds, symbolic and compiled MiB, peak MiB, the part that is communication.
BASELINES = {
    "data parallel": (12.0, 8.0, 8.0, 40.0, 0.25),
    "zero 1": (13.0, 8.0, 12.0, 24.0, 0.30),
    "zero 3": (14.0, 8.0, 13.0, 20.0, 0.40),
    "megatron": (11.0, 5.0, 5.0, 30.0, 0.30),
    "megatron, sequence parallel": (10.5, 5.5, 5.5, 28.0, 0.30),
    "volume": (15.0, 4.0, 4.5, 32.0, 0.50),
}
OURS = (10.0, 6.0, 6.0, 26.0, 0.20)
BLOCKS = ("embedding tokens", "attention qkv", "attention out", "mlp up", "mlp down", "head")
SEGMENTS = (0, 1, 1, 1, 1, 2)


def made_run(name, role, numbers, *, choices=None, predicted=1.04, summed=1.2, scale=1.0):
    """A run; predictions are so many times the measured time."""
    time_ms, volume, compiled, peak, share = numbers
    time_s = time_ms * 1e-3 * scale
    return PlanRun(
        name=name,
        role=role,
        choices=choices or ((NAMES[len(name) % 3],),) * len(BLOCKS),
        storage=name if name.startswith("zero") else "as used",
        volume_bytes=volume * MIB * scale,
        compiled_bytes=compiled * MIB * scale,
        predicted_s=None if role is Role.STRATEGY else predicted * time_s,
        sum_s=summed * time_s,
        predicted_bytes=int(peak * MIB),
        coarse_s=1.02 * time_s,
        measured_s=time_s,
        spread=0.5,
        error=0.01,
        compute_s=(1 - share) * time_s,
        communication_s=share * time_s,
        peak_bytes=int(peak * MIB),
    )


def made_strategies(count, scale):
    """Strategies of the four blocks of a layer, slower and with more volume, but not in the same order."""
    runs = []
    for number, names in enumerate(itertools.islice(itertools.product(NAMES, repeat=4), count)):
        choices = (("rows",), *((name,) for name in names), ("rows",))
        numbers = (12.0 + (7 * number) % 20, 4.5 + 0.5 * number, 5.0 + 0.5 * number, 30.0, 0.2 + 0.01 * number)
        runs.append(made_run(", ".join(names), Role.STRATEGY, numbers, choices=choices, scale=scale))
    # Only the best are run often, as in a real cell.
    return [run if number < 5 else replace(run, measured_s=None, spread=None) for number, run in enumerate(runs)]


def made_cell(model="gpt", *, num_strategies=24, limit_bytes=None, scale=1.0, **changes):
    """A cell in which the search found something better than all baselines."""
    sizes = {"num_layers": 2, "model_dim": 256, "batch_size": 8} | changes
    spec = CellSpec(model=model, num_strategies=None, memory_limit_bytes=limit_bytes, **sizes)
    runs = [made_run("finalist 0", Role.FINALIST, OURS, choices=(("columns",), *((("rows",),) * 5)), scale=scale)]
    runs += [made_run(name, Role.BASELINE, numbers, scale=scale) for name, numbers in BASELINES.items()]
    runs += made_strategies(num_strategies, scale)
    return Cell(
        spec=spec,
        limit_bytes=limit_bytes,
        runs=tuple(runs),
        chosen="finalist 0",
        num_programs=105,
        equation_7=114,
        num_known=0,
        blocks=tuple(
            BlockInfo(segment=segment, kind=segment, weight=weight, line="parts.py:1", names=NAMES)
            for weight, segment in zip(BLOCKS, SEGMENTS, strict=True)
        ),
        seconds=Seconds(
            traced=0.2,
            analysed=0.1,
            lowered=2.0,
            compiled=120.0 * scale,
            profiled=8.0 * scale,
            priced=40.0,
            composed=0.3,
            predicted=9.0,
            whole_compiled=30.0,
            whole_run=12.0,
        ),
        machine="8 x cpu: some processor, 16 cores, JAX 0.10.2",
    )


def made_results():
    """All figures have something to show."""
    cells = []
    for number, model in enumerate(("gpt", "bert", "llama", "moe")):
        scale = 1 + 0.3 * number
        cells.append(made_cell(model, scale=scale))
        cells.append(made_cell(model, scale=2 * scale, batch_size=32))
        cells.append(made_cell(model, scale=1.5 * scale, model_dim=512))
        limited = made_cell(model, scale=scale)
        cells.append(
            replace(limited, spec=replace(limited.spec, memory_limit_share=0.7), limit_bytes=28 * MIB, num_known=105)
        )
    cells.append(made_cell("gpt", num_layers=6, num_strategies=6))
    cells += [made_cell("gpt", mesh=mesh, num_strategies=0) for mesh in ((2, 4), (4, 2))]
    for batch_size in (8, 32, 64):
        cells.append(made_cell("llama", batch_size=batch_size, limit_bytes=29 * MIB, num_strategies=0))
    cells.append(made_cell("llama", num_layers=8, limit_bytes=29 * MIB, num_strategies=0, scale=3.0))
    depths = [
        Depth(
            model=model, num_layers=layers, num_segments=layers + 2, num_programs=105, traced_s=0.1 * layers,
            analysed_s=0.02 * layers * (1 + 0.2 * number), composed_s=0.01 * layers,
        )
        for number, model in enumerate(("gpt", "llama", "moe"))
        for layers in (4, 24, 96)
    ]  # fmt: skip
    return Results(cells=tuple(cells), depths=tuple(depths))


def priced_for(cluster, results):
    """The same numbers, as if they were priced for a cluster."""
    cells = []
    for cell in results.cells:
        runs = tuple(replace(run, priced_s=run.time_s, measured_s=None, coarse_s=None, error=0.0) for run in cell.runs)
        machine = f"8 chips of {cluster}, compiled by jax 1; seconds by its figures (0)"
        cells.append(replace(cell, runs=runs, machine=machine, cluster=cluster))
    return replace(results, cells=tuple(cells))
