"""`jaxquard shard show`: the blocks and segments of a step, without measuring anything."""

from typing import TYPE_CHECKING, Any

from jaxquard.cli.console import print_json, print_text
from jaxquard.cli.options import JsonOption
from jaxquard.cli.shard.options import BatchOption, ModelArgument, ShownDevicesOption, ShownMeshOption, parse_mesh

if TYPE_CHECKING:
    from jaxquard.intraop.segments.analysis import Analysis


def show(
    model: ModelArgument,
    mesh: ShownMeshOption = None,
    devices: ShownDevicesOption = None,
    batch_size: BatchOption = None,
    as_json: JsonOption = False,
) -> None:
    """Shows the blocks of a step, where in the code they begin, how each can be sharded, and the segments that recur.

    Example: jaxquard shard show gpt-tiny --devices 8
    """
    sizes = parse_mesh(mesh)
    from jaxquard.cli.devices import NUM_CPU_DEVICES, mesh_axes, prepare_devices
    from jaxquard.cli.shard.find_step import find_step
    from jaxquard.intraop.segments.analysis import analyse_step
    from jaxquard.intraop.segments.analysis_text import analysis_text
    from jaxquard.intraop.step.traced_step import trace_step

    prepare_devices(cpu=True, num_devices=devices, sizes=sizes)
    step = find_step(model, batch_size=batch_size)
    traced = trace_step(step.train_step, step.args)
    analysis = analyse_step(traced, axes=mesh_axes(sizes or (devices or NUM_CPU_DEVICES,)))
    if as_json:
        print_json(_content(analysis))
    else:
        print_text(analysis_text(analysis))


def _content(analysis: "Analysis") -> dict[str, Any]:
    from jaxquard.intraop.blocks.parameter_paths import parameters_of, state_paths
    from jaxquard.intraop.blocks.unplanned_matmuls import step_notes
    from jaxquard.ir.source import name_scope, source_line

    paths = state_paths(analysis.graph)
    blocks = [
        {
            "number": block.number,
            "contractions": [
                {
                    "parameters": list(parameters_of(analysis.graph, [seed.equation], paths)),
                    "scope": name_scope(seed.equation),
                    "line": source_line(seed.equation),
                    "primitive": seed.equation.primitive.name,
                    "inputs": [atom.aval.str_short() for atom in seed.equation.invars],
                    "output": seed.equation.outvars[0].aval.str_short(),
                }
                for seed in block.seeds
            ],
            "num_equations": analysis.owners.count(block.number),
            "choices": [{"name": choice.name, "num_chunks": choice.num_chunks} for choice in block.choices],
        }
        for block in analysis.blocks
    ]
    segments = [
        {"number": segment.number, "kind": segment.kind, "blocks": list(segment.blocks)}
        for segment in analysis.segments
    ]
    return {
        "axes": dict(analysis.axes),
        "num_equations": len(analysis.owners),
        "segments": segments,
        "blocks": blocks,
        "notes": list(step_notes(analysis.graph)),
    }
