"""`jaxquard shard show`: what a step is made of, without measuring anything."""

from jaxquard.cli.console import make_console
from jaxquard.cli.shard_options import (
    BatchOption,
    DevicesOption,
    MeshOption,
    ModelArgument,
    mesh_axes,
    parse_mesh,
    prepare_devices,
)
from jaxquard.cli.shard_step import find_step
from jaxquard.intraop.segments.analysis import analyse_step
from jaxquard.intraop.segments.analysis_text import analysis_text
from jaxquard.intraop.step.traced_step import trace_step

_NUM_DEVICES = 8


def show(
    model: ModelArgument, mesh: MeshOption = None, devices: DevicesOption = None, batch_size: BatchOption = None
) -> None:
    """Shows the blocks of a step, where in the code they begin, how each can be cut, and the segments that recur.

    Example: [bold]jaxquard shard show gpt-tiny --devices 8[/bold]
    """
    sizes = parse_mesh(mesh)
    prepare_devices(cpu=True, num_devices=devices, sizes=sizes)
    step = find_step(model, batch_size=batch_size)
    traced = trace_step(step.train_step, step.args)
    analysis = analyse_step(traced, axes=mesh_axes(sizes or (devices or _NUM_DEVICES,)))
    console = make_console()
    console.print(analysis_text(analysis), markup=False, soft_wrap=True)
