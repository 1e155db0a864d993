"""The paths of the parameters that equations use: `params.layers.3.mlp.up`."""

import re
from collections.abc import Iterable, Mapping

from jaxquard.intraop.blocks.graph import StepGraph
from jaxquard.ir.jaxpr_tools import Equation, Var, variables
from jaxquard.ir.source import source_place

# The keys of a leaf as `jax.tree_util.keystr` writes them: ['w'], [3], .weight, [<flat index 0>].
_KEY = re.compile(r"\['([^']*)'\]|\[\"([^\"]*)\"\]|\[(\d+)\]|\.([^.\[]+)|\[<flat index (\d+)>\]")
_ARGUMENT = re.compile(r"argument \d+")
# An error names no more of them.
_MOST_PATHS = 2


def state_paths(graph: StepGraph) -> dict[Var, str]:
    """Returns the path of every input of the step that is state."""
    names = zip(graph.step.jaxpr.invars, graph.step.input_names, strict=True)
    return {var: parameter_path(name) for var, name in names if _ARGUMENT.match(name) and var in graph.state}


def parameters_of(graph: StepGraph, equations: Iterable[Equation], paths: Mapping[Var, str]) -> tuple[str, ...]:
    """Returns the paths of the state that the weights of equations are computed from, in any way."""
    weights = [var for equation in equations for var in variables(equation.invars) if var not in graph.data_vars]
    return tuple(dict.fromkeys(paths[var] for var in graph.sources(weights, paths.keys()) if var in paths))


def equation_place(graph: StepGraph, equation: Equation) -> str:
    """`params.up, mlp, train.py:41`: the parameters that an equation uses, its name scope and its line."""
    found = parameters_of(graph, [equation], state_paths(graph))
    # Of a list of arrays there are numbers alone.
    names = (f"parameter {path}" if path.replace(".", "").isdecimal() else path for path in found[:_MOST_PATHS])
    return ", ".join((*names, source_place(equation)))


def parameter_path(name: str) -> str:
    """Returns the path of a leaf: `params.layers.3.w` for `argument 0['params']['layers'][3]['w']`."""
    argument = _ARGUMENT.match(name)
    keys = ["".join(filter(None, groups)) for groups in _KEY.findall(name[argument.end() :] if argument else name)]
    return ".".join(keys) or name
