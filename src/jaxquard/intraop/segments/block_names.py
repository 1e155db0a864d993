"""The names by which a user speaks of a block: the paths of its parameters, and its lines in the code."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from jaxquard.intraop.blocks.block import Block
from jaxquard.intraop.blocks.graph import StepGraph
from jaxquard.intraop.segments.analysis import Analysis
from jaxquard.ir.jaxpr_tools import Var, is_var, variables
from jaxquard.ir.source import source_lines

# The keys of a leaf as `jax.tree_util.keystr` writes them: ['w'], [3], .weight, [<flat index 0>].
_KEY = re.compile(r"\['([^']*)'\]|\[\"([^\"]*)\"\]|\[(\d+)\]|\.([^.\[]+)|\[<flat index (\d+)>\]")
_ARGUMENT = re.compile(r"argument \d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockNames:
    """The names of a block.

    Attributes:
        paths: of the parameters that its contractions use, such as "params.layers.3.mlp.up".
        lines: of the user's code, where its contractions stand, then those that called them.
    """

    paths: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()


def names_of_blocks(analysis: Analysis) -> dict[int, BlockNames]:
    """Finds the names of every block of a step, by its number."""
    names = dict(zip(analysis.step.jaxpr.invars, analysis.step.input_names, strict=True))
    paths: Mapping[Var, str] = {
        var: parameter_path(name)
        for var, name in names.items()
        if _ARGUMENT.match(name) and var in analysis.graph.state
    }
    return {block.number: _names_of(analysis.graph, block, paths) for block in analysis.blocks}


def parameter_path(name: str) -> str:
    """Returns the path of a leaf: `params.layers.3.w` for `argument 0['params']['layers'][3]['w']`."""
    argument = _ARGUMENT.match(name)
    keys = ["".join(filter(None, groups)) for groups in _KEY.findall(name[argument.end() :] if argument else name)]
    return ".".join(keys) or name


def _names_of(graph: StepGraph, block: Block, paths: Mapping[Var, str]) -> BlockNames:
    equations = [graph.equations[position] for position in block.contractions]
    weights = [
        atom for equation in equations for atom in equation.invars if is_var(atom) and atom not in graph.data_vars
    ]
    lines = [list(source_lines(equation)) for equation in equations]
    first = [found[0] for found in lines if found]
    callers = [line for found in lines for line in found[1:]]
    return BlockNames(
        paths=tuple(dict.fromkeys(_paths_of(graph, weights, paths))), lines=tuple(dict.fromkeys([*first, *callers]))
    )


def _paths_of(graph: StepGraph, weights: Iterable[Var], paths: Mapping[Var, str]) -> list[str]:
    """Returns the paths of the state that values are computed from, by casts, slices, transposes or anything else."""
    waiting, seen, found = list(weights)[::-1], set[Var](), []
    while waiting:
        var = waiting.pop()
        if var in seen:
            continue
        seen.add(var)
        if var in paths:
            found.append(paths[var])
        elif var in graph.definitions:
            waiting += variables(graph.equations[graph.definitions[var]].invars)
    return found
